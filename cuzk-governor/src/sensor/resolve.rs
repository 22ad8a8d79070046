//! Where this process stands in the cgroup trees: from `/proc/self/cgroup` and `mountinfo`.
//!
//! Assumes nothing about order, names or mount points: lines come in any order, cgroup names hold
//! spaces and colons, mountinfo escapes them (`\040`) and `/proc/self/cgroup` does not. Where the
//! process's path does not lie below the mount (a container that sees the host's paths) the
//! mount's own root is the only level known to be ours, and the only one used.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use super::SensorError;

/// Where `/proc` and `/sys` are looked for: `/`, or a tree that a test has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root(PathBuf);

impl Default for Root {
    fn default() -> Self {
        Self("/".into())
    }
}

impl Root {
    /// The root of a made-up file system.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// An absolute path as seen by a process whose root this is.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Which of the kernel's interfaces tells about memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Version {
    /// cgroup v1, alone or beside a v2 tree that has no memory controller (hybrid).
    V1,
    /// cgroup v2.
    V2,
}

/// The cgroups that bind this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchy {
    /// The tree that has the memory controller.
    pub memory: Option<Tree>,
    /// This process's cgroup in a v2 tree, where `memory.pressure` is, even beside v1.
    pub unified: Option<PathBuf>,
}

/// A path from this process's cgroup up to the root of its mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    /// How its files are named.
    pub version: Version,
    /// The levels' folders, this process's own first; never empty.
    pub levels: Vec<PathBuf>,
}

/// Finds this process's cgroups. That there are none is an answer, not an error.
pub fn resolve(root: &Root) -> Result<Hierarchy, SensorError> {
    let membership = read(root, "/proc/self/cgroup")?;
    let mounts = parse_mounts(&read(root, "/proc/self/mountinfo")?);
    let v1 = memory_path(&membership).and_then(|path| climb(root, &mounts, Kind::V1Memory, &path));
    let v2 = unified_path(&membership).and_then(|path| climb(root, &mounts, Kind::V2, &path));
    let unified = v2.as_ref().map(|levels| levels[0].clone());
    let memory = match (v1, v2) {
        (Some(levels), _) => Some(Tree { version: Version::V1, levels }),
        (None, Some(levels)) => Some(Tree { version: Version::V2, levels }),
        (None, None) => None,
    };
    Ok(Hierarchy { memory, unified })
}

fn read(root: &Root, path: &str) -> Result<Vec<u8>, SensorError> {
    let path = root.join(path);
    fs::read(&path).map_err(|source| SensorError::Unreadable { path, source })
}

/// The path of the line `0::PATH`.
fn unified_path(membership: &[u8]) -> Option<OsString> {
    membership_path(membership, |controllers| controllers.is_empty())
}

/// The path of the line `N:CONTROLLERS:PATH` that has `memory` among its controllers.
fn memory_path(membership: &[u8]) -> Option<OsString> {
    membership_path(membership, |controllers| has_word(controllers, b"memory"))
}

fn membership_path(membership: &[u8], is_ours: impl Fn(&[u8]) -> bool) -> Option<OsString> {
    lines(membership).find_map(|line| {
        let mut parts = line.splitn(3, |&byte| byte == b':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        is_ours(controllers).then(|| OsString::from_vec(path.to_vec()))
    })
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty())
}

fn has_word(list: &[u8], word: &[u8]) -> bool {
    list.split(|&byte| byte == b',').any(|entry| entry == word)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    V1Memory,
    V2,
}

#[derive(Debug, PartialEq, Eq)]
struct Mount {
    kind: Kind,
    /// The cgroup that the mount shows as its root.
    root: PathBuf,
    point: PathBuf,
}

fn parse_mounts(mountinfo: &[u8]) -> Vec<Mount> {
    lines(mountinfo).filter_map(parse_mount).collect()
}

/// `36 35 98:0 ROOT POINT options optional... - TYPE source OPTIONS`
fn parse_mount(line: &[u8]) -> Option<Mount> {
    let fields: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
    let dash = 6 + fields.get(6..)?.iter().position(|field| *field == b"-")?;
    let kind = match *fields.get(dash + 1)? {
        b"cgroup" if has_word(fields.last()?, b"memory") => Kind::V1Memory,
        b"cgroup2" => Kind::V2,
        _ => return None,
    };
    Some(Mount { kind, root: unescape(fields[3]), point: unescape(fields[4]) })
}

/// Undoes mountinfo's `\ooo`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|digits| digits.iter().all(|d| (b'0'..b'8').contains(d)));
        match (byte, octal) {
            (b'\\', Some(digits)) => {
                let code =
                    digits.iter().fold(0_u32, |code, digit| code * 8 + u32::from(digit - b'0'));
                plain.push(code as u8);
                rest = &after[3..];
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(plain).into()
}

/// The folders from the process's cgroup up to the mount's root, of the mount that shows the most
/// of them; a mount's root alone where none shows the process's own.
fn climb(root: &Root, mounts: &[Mount], kind: Kind, path: &OsStr) -> Option<Vec<PathBuf>> {
    let here = |mount: &&Mount| mount.kind == kind && root.join(&mount.point).is_dir();
    let mounts = || mounts.iter().filter(here);
    let whole = mounts().filter_map(|mount| levels(root, mount, Path::new(path)));
    // Of equals the last: it may be mounted over the others.
    whole
        .max_by_key(Vec::len)
        .or_else(|| mounts().next_back().map(|mount| vec![mount.point.clone()]))
}

fn levels(root: &Root, mount: &Mount, path: &Path) -> Option<Vec<PathBuf>> {
    let relative = below(path, &mount.root)?;
    let folder = |relative: &Path| match relative.as_os_str().is_empty() {
        true => mount.point.clone(),
        false => mount.point.join(relative),
    };
    let levels: Vec<_> = relative.ancestors().map(folder).collect();
    root.join(&levels[0]).is_dir().then_some(levels)
}

/// `path` relative to the cgroup that a mount shows as its root; `None` where it is not below it.
fn below<'a>(path: &'a Path, mount_root: &Path) -> Option<&'a Path> {
    let relative = path.strip_prefix(mount_root).ok()?;
    // A cgroup outside the process's namespace is written `/../sibling`: not below, whatever
    // the file system makes of the dots.
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    plain.then_some(relative)
}

#[cfg(test)]
mod tests {
    use super::*;

    const V2: &str =
        "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "35 31 0:32 / /sys/fs/cgroup/memory rw shared:17 - cgroup cgroup rw,memory\n";

    struct Tree {
        dir: tempfile::TempDir,
    }

    impl Tree {
        fn new(membership: &str, mountinfo: &str, folders: &[&str]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = Root::at(dir.path());
            for folder in folders.iter().chain(&["/proc/self"]) {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
            fs::write(root.join("/proc/self/cgroup"), membership).unwrap();
            fs::write(root.join("/proc/self/mountinfo"), mountinfo).unwrap();
            Self { dir }
        }

        fn resolve(&self) -> Hierarchy {
            resolve(&Root::at(self.dir.path())).unwrap()
        }
    }

    fn memory(hierarchy: &Hierarchy) -> (Version, Vec<&str>) {
        let tree = hierarchy.memory.as_ref().unwrap();
        (tree.version, tree.levels.iter().map(|level| level.to_str().unwrap()).collect())
    }

    #[test]
    fn every_level_from_our_own_to_the_mount_root_is_found_and_none_beyond() {
        let tree = Tree::new("0::/a.slice/b.service\n", V2, &["/sys/fs/cgroup/a.slice/b.service"]);
        let expected =
            vec!["/sys/fs/cgroup/a.slice/b.service", "/sys/fs/cgroup/a.slice", "/sys/fs/cgroup"];
        assert_eq!(memory(&tree.resolve()), (Version::V2, expected));
    }

    #[test]
    fn a_process_in_the_root_cgroup_has_one_level() {
        let tree = Tree::new("0::/\n", V2, &["/sys/fs/cgroup"]);
        assert_eq!(memory(&tree.resolve()), (Version::V2, vec!["/sys/fs/cgroup"]));
    }

    #[test]
    fn lines_come_in_any_order_and_controllers_are_matched_whole() {
        let membership =
            "9:name=memory:/wrong\n0::/\n4:hugetlb,memory:/right\n3:memory_like:/wrong\n";
        let mounts = format!("{}{}", V1.replace("rw,memory", "rw,hugetlb,memory"), V2);
        let folders = ["/sys/fs/cgroup/memory/right", "/sys/fs/cgroup/memory/wrong"];
        let hierarchy = Tree::new(membership, &mounts, &folders).resolve();
        let expected = vec!["/sys/fs/cgroup/memory/right", "/sys/fs/cgroup/memory"];
        assert_eq!(memory(&hierarchy), (Version::V1, expected));
    }

    #[test]
    fn beside_v1_memory_the_v2_tree_is_kept_for_its_pressure() {
        let membership = "4:memory:/job\n0::/system.slice/job\n";
        let mounts = format!("{V1}41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
        let folders = ["/sys/fs/cgroup/memory/job", "/sys/fs/cgroup/unified/system.slice/job"];
        let hierarchy = Tree::new(membership, &mounts, &folders).resolve();
        assert_eq!(memory(&hierarchy).0, Version::V1);
        let unified = Path::new("/sys/fs/cgroup/unified/system.slice/job");
        assert_eq!(hierarchy.unified.as_deref(), Some(unified));
    }

    #[test]
    fn a_container_that_sees_the_hosts_path_uses_its_mount_root() {
        let folders = ["/sys/fs/cgroup"];
        let hierarchy = Tree::new("0::/kubepods/pod1/c1\n", V2, &folders).resolve();
        assert_eq!(memory(&hierarchy).1, vec!["/sys/fs/cgroup"]);
    }

    #[test]
    fn a_mount_that_shows_the_container_as_its_root_is_not_entered_twice() {
        let mounts = V1.replace(" / /sys", " /docker/abc /sys");
        // As in docker in docker: the same name exists once more below the mount.
        let folders = ["/sys/fs/cgroup/memory/docker/abc", "/sys/fs/cgroup/memory/inner"];
        let outer = Tree::new("4:memory:/docker/abc\n", &mounts, &folders).resolve();
        assert_eq!(memory(&outer).1, vec!["/sys/fs/cgroup/memory"]);
        let inner = Tree::new("4:memory:/docker/abc/inner\n", &mounts, &folders).resolve();
        assert_eq!(memory(&inner).1, vec!["/sys/fs/cgroup/memory/inner", "/sys/fs/cgroup/memory"]);
    }

    #[test]
    fn a_mount_root_whose_name_only_begins_like_ours_is_no_parent() {
        let mounts = V1.replace(" / /sys", " /docker/ab /sys");
        let folders = ["/sys/fs/cgroup/memory/c"];
        let hierarchy = Tree::new("4:memory:/docker/abc\n", &mounts, &folders).resolve();
        assert_eq!(memory(&hierarchy).1, vec!["/sys/fs/cgroup/memory"]);
    }

    #[test]
    fn a_cgroup_beside_a_mount_root_is_not_looked_for_below_it() {
        let mounts = V1.replace(" / /sys", " /docker/ab /sys");
        let folders = ["/sys/fs/cgroup/memory/job"];
        let hierarchy = Tree::new("4:memory:/job\n", &mounts, &folders).resolve();
        assert_eq!(memory(&hierarchy).1, vec!["/sys/fs/cgroup/memory"]);
    }

    #[test]
    fn a_cgroup_outside_our_namespace_does_not_lead_out_of_the_mount() {
        let folders = ["/sys/fs/cgroup", "/sys/fs/sibling"];
        let hierarchy = Tree::new("0::/../sibling\n", V2, &folders).resolve();
        assert_eq!(memory(&hierarchy).1, vec!["/sys/fs/cgroup"]);
    }

    #[test]
    fn names_hold_spaces_colons_and_backslashes() {
        let mounts = V2
            .replace(" / /sys", r" /a\040b\134c /sys")
            .replace("/sys/fs/cgroup rw", r"/mnt/my\040groups rw");
        let folders = ["/mnt/my groups/d:e f"];
        let hierarchy = Tree::new("0::/a b\\c/d:e f\n", &mounts, &folders).resolve();
        assert_eq!(memory(&hierarchy).1, vec!["/mnt/my groups/d:e f", "/mnt/my groups"]);
    }

    #[test]
    fn of_two_mounts_the_one_that_shows_more_ancestors_counts() {
        let partial = "50 23 0:26 /a /mnt/part rw - cgroup2 none rw\n";
        let folders = ["/sys/fs/cgroup/a/b", "/mnt/part/b"];
        for mounts in [format!("{V2}{partial}"), format!("{partial}{V2}")] {
            let hierarchy = Tree::new("0::/a/b\n", &mounts, &folders).resolve();
            assert_eq!(memory(&hierarchy).1.len(), 3);
        }
    }

    #[test]
    fn a_v1_tree_that_is_not_mounted_here_leaves_v2() {
        let hierarchy = Tree::new("4:memory:/job\n0::/\n", V2, &["/sys/fs/cgroup"]).resolve();
        assert_eq!(memory(&hierarchy).0, Version::V2);
    }

    #[test]
    fn without_any_cgroup_only_the_host_is_left() {
        let tree = Tree::new("", "27 1 254:0 / / rw - ext4 /dev/vda rw\n", &[]);
        assert_eq!(tree.resolve(), Hierarchy::default());
    }
}
