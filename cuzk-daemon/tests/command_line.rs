//! The `cuzk` program itself: its settings, its exit codes, its signals. (Here and not among the
//! end-to-end tests, because Cargo tells only a package's own tests where its program is.)

use cuzk_core::proof::ProofKind;
use cuzk_core::sample::Sample;
use cuzk_daemon::address::Address;
use cuzk_daemon::client;
use cuzk_daemon::wire::{self, await_proof_response::Status as Ended};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

const KIND: ProofKind = ProofKind::WindowPostPartition;
const PATIENCE: Duration = Duration::from_secs(120);

/// The program, in an environment of its own.
fn cuzk(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cuzk"));
    command.env_clear().args(arguments);
    command
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs it to its end; checks how it ends, and gives what it says on stderr.
fn refused(mut command: Command, expected: i32) -> String {
    let output = command.output().unwrap();
    let says = text(&output.stderr);
    assert_eq!(code(&output), expected, "{command:?} says {says}");
    says
}

/// Runs it to a good end, and gives its stdout.
fn done(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{command:?} says {}", text(&output.stderr));
    text(&output.stdout)
}

/// Development parameters of [`KIND`], made by the program.
fn parameters() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("development-parameters");
        let made = done(cuzk(&["params", "dev", "wpost-2k", "--dir", path(&folder)]));
        assert!(made.starts_with("development parameters (insecure) in "), "{made}");
        env::set_var("FIL_PROOFS_PARENT_CACHE", folder.join("parents"));
        folder
    })
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Writes a sector's vanilla proof, and gives the arguments that make a request of it.
fn request(folder: &Path, seed: u64) -> Vec<String> {
    parameters();
    let raw = Sample::make(seed).unwrap().request(KIND);
    let file = folder.join(format!("vanilla-{seed}"));
    fs::write(&file, &raw.vanilla_proofs[0]).unwrap();
    [
        path(&file).to_owned(),
        format!("--kind={KIND}"),
        format!("--registered-proof={}", raw.registered_proof),
        format!("--sector-number={}", raw.sector_number),
        format!("--miner-id={}", raw.miner_id),
        format!("--randomness={}", hex::encode(&raw.randomness)),
    ]
    .into()
}

/// A daemon in a process of its own, on a unix socket; killed when dropped.
struct Server {
    process: Child,
    address: String,
}

impl Server {
    fn start(socket: &Path, more: &[&str]) -> Server {
        let address = format!("unix://{}", socket.display());
        let mut command = cuzk(&["serve", "--listen", &address]);
        command.args(["--params-dir", path(parameters())]).args(more);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, format!("listening on {address}\n"));
        Server { process, address }
    }

    fn signal(&self, name: &str) {
        let pid = self.process.id();
        let sent = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status();
        assert!(sent.unwrap().success(), "SIG{name} is sent");
    }

    /// Waits for its end, and gives its exit code.
    fn ended(&mut self, limit: Duration) -> i32 {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code().unwrap_or(-1);
            }
            assert!(Instant::now() < deadline, "the daemon did not end within {limit:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Jobs about one sector, in the order in which they were submitted.
struct Jobs {
    runtime: tokio::runtime::Runtime,
    client: client::Client,
    ids: Vec<String>,
}

impl Jobs {
    fn submit(socket: &Path, count: usize) -> Jobs {
        parameters();
        let request = Sample::make(4).unwrap().request(KIND);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let address = Address::Unix(socket.to_owned());
        let mut client = runtime.block_on(client::connect(&address)).unwrap();
        let submit = |number| {
            let request_id = format!("job-{number}");
            let submit = wire::SubmitProofRequest { request_id, ..request.clone().into() };
            runtime.block_on(client.submit_proof(submit)).unwrap().into_inner().job_id
        };
        let ids = (0..count).map(submit).collect();
        Jobs { runtime, client, ids }
    }

    /// How the last of them ends; `once_asked` is called when the daemon has the question.
    fn last(&mut self, once_asked: impl FnOnce()) -> Ended {
        let job_id = self.ids.last().unwrap().clone();
        let mut other = self.client.clone();
        let end = self.client.await_proof(wire::AwaitProofRequest { job_id, timeout_ms: 0 });
        // On the same connection, so behind the question.
        let status = other.get_status(wire::GetStatusRequest {});
        let asked = async { status.await.map(|_| once_asked()) };
        let ended = self.runtime.block_on(async { tokio::try_join!(end, asked) });
        ended.unwrap().0.into_inner().status()
    }
}

#[test]
fn flags_win_over_the_environment_that_over_the_file_that_over_defaults() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cuzk.toml");
    let settings = "threads = 3\nmemory_budget = '3GiB'\nshutdown_grace = '3s'\n\
                    listen = ['127.0.0.1:3', 'unix:///three']\nparams_dir = '/three'\n";
    fs::write(&file, settings).unwrap();
    let mut command = cuzk(&["config", "--json", "--config", path(&file), "--threads", "5"]);
    command.env("CUZK_THREADS", "4").env("CUZK_MEMORY_BUDGET", "4GiB");
    command.env("CUZK_PRELOAD", "porep-32g,winning-32g").env("CUZK_GOV_TICK", "2s");
    let explained: serde_json::Value = serde_json::from_str(&done(command)).unwrap();
    let found = |name: &str| {
        let rows = explained.as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        (row["value"].as_str().unwrap().to_owned(), row["source"].as_str().unwrap().to_owned())
    };
    let from_file = format!("file {}", file.display());
    for (name, value, source) in [
        ("threads", "5", "flag --threads"),
        ("memory_budget", "4GiB", "environment CUZK_MEMORY_BUDGET"),
        ("preload", "porep-32g,winning-32g", "environment CUZK_PRELOAD"),
        ("shutdown_grace", "3s", &from_file),
        ("listen", "127.0.0.1:3,unix:///three", &from_file),
        ("params_dir", "/three", &from_file),
        ("native_dir", "/three/cuzk-native", "default"),
        ("log_format", "text", "default"),
        ("CUZK_GOV_TICK", "2s", "environment CUZK_GOV_TICK"),
        ("CUZK_GOV_PROFILE", "balanced", "default"),
        ("CUZK_GOV_TRUST_TICKS", "4", "default"),
    ] {
        assert_eq!(found(name), (value.to_owned(), source.to_owned()), "{name}");
    }
}

#[test]
fn a_governors_variable_that_is_wrong_is_refused_by_config_as_by_serve() {
    for (name, value, expected) in [
        ("CUZK_GOV_TICK", "soon", "CUZK_GOV_TICK=\"soon\" cannot be read"),
        ("CUZK_GOV_TICK", "10h", "CUZK_GOV_TICK=10h is out of range: expected 10ms to 1m"),
        ("CUZK_GOV_REACTION", "20ms", "contradicts CUZK_GOV_TICK=1s"),
        ("CUZK_GOV_TOCK", "1s", "CUZK_GOV_TOCK is not known"),
        ("CUZK_GOV_LIMIT", "1KiB", "expected at least 64MiB"),
    ] {
        let says = ["config", "serve"].map(|command| {
            let mut command = cuzk(&[command]);
            command.env(name, value);
            refused(command, 2)
        });
        assert!(says[0].contains(expected), "{}", says[0]);
        assert_eq!(says[0], says[1]);
    }
    let mut command = cuzk(&["config"]);
    command.env("CUZK_GOV_PROFILE", "aggressive");
    let shown = done(command);
    let row = |name: &str| {
        let line = shown.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("CUZK_GOV_REACTION")[1..3], ["2s", "profile"]);
    let of_profile = ["aggressive", "environment", "CUZK_GOV_PROFILE"];
    assert_eq!(row("CUZK_GOV_PROFILE")[1..4], of_profile);
}

#[test]
fn simulate_tries_the_operators_setpoints_and_takes_no_empty_trace_for_a_good_one() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let simulate = || cuzk(&["simulate", "small-node", "--plot", path(&plot)]);
    let governed = |command: Command| {
        let table = done(command);
        table.lines().find(|line| line.starts_with("governed")).unwrap().to_owned()
    };
    let usual = governed(simulate());
    assert!(text(&fs::read(&plot).unwrap()).starts_with("<svg"));
    let mut cautious = simulate();
    cautious.env("CUZK_GOV_MARGIN_FLOOR", "20%").env("CUZK_GOV_MARGIN_START", "20%");
    assert_ne!(governed(cautious), usual);
    let mut misspelt = simulate();
    misspelt.env("CUZK_GOV_TOCK", "1s");
    assert!(refused(misspelt, 2).contains("CUZK_GOV_TOCK is not known"));
    let trace = folder.path().join("trace.jsonl");
    fs::write(&trace, "").unwrap();
    let says = refused(cuzk(&["simulate", "--replay", path(&trace)]), 2);
    assert!(says.contains("no ticks are recorded"), "{says}");
}

#[test]
fn more_threads_than_processors_can_use_are_refused_by_those_that_prove() {
    let processors = thread::available_parallelism().unwrap().get();
    let (most, more) = (8 * processors, (8 * processors + 1).to_string());
    if most >= 1024 {
        return; // the other bound comes first
    }
    let expected = format!(
        "error: threads (flag --threads): found {more}, expected at most {most} (8 for each of \
         {processors} processors)\n"
    );
    for command in ["serve", "demo"] {
        assert_eq!(refused(cuzk(&[command, "--threads", &more]), 2), expected);
    }
    assert!(done(cuzk(&["config", "--threads", &more])).contains(&more), "asking is free");
}

#[test]
fn a_setting_that_is_wrong_is_named_with_its_source() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cuzk.toml");
    let in_file = |settings: &str| {
        fs::write(&file, settings).unwrap();
        refused(cuzk(&["config", "--config", path(&file)]), 2)
    };
    let name = path(&file);
    let all = "`cuzk config` lists them all";
    assert_eq!(
        in_file("memory_bugdet = '1GiB'"),
        format!(
            "error: file {name}: there is no setting 'memory_bugdet'; did you mean \
             'memory_budget'? {all}\n"
        )
    );
    assert_eq!(
        in_file("memory_budget = 'three apples'"),
        format!(
            "error: memory_budget (file {name}): found string \"three apples\", expected a size \
             like 4GiB\n"
        )
    );
    assert_eq!(
        in_file("log_format = 'xml'"),
        format!("error: log_format (file {name}): found 'xml', expected text or json\n")
    );
    assert!(in_file("threads = = 2").starts_with(&format!("error: configuration file {name}: ")));
    assert!(in_file("listen = ['nonsense']").contains("'nonsense' is not an address"));

    let with = |key: &str, value: &str| {
        let mut command = cuzk(&["config"]);
        command.env(key, value);
        refused(command, 2)
    };
    assert_eq!(
        with("CUZK_TREADS", "2"),
        format!(
            "error: environment CUZK_TREADS: there is no setting 'treads'; did you mean \
             'threads'? {all}\n"
        )
    );
    let zero = "found 0, expected at least 1\n";
    assert_eq!(
        with("CUZK_THREADS", "0"),
        format!("error: threads (environment CUZK_THREADS): {zero}")
    );
    assert!(with("CUZK_CONFIG", "/not/there").contains("/not/there: No such file"));
    let flag = refused(cuzk(&["config", "--keep-finished", "long"]), 2);
    let expected = "found string \"long\", expected a whole number\n";
    assert_eq!(flag, format!("error: keep_finished (flag --keep-finished): {expected}"));
}

/// What would be an overflow, a start that never ends, a daemon that can prove nothing.
#[test]
fn a_setting_out_of_range_is_refused_with_what_is_expected() {
    for (flag, value, expected) in [
        ("threads", "1025", "at most 1024"),
        ("memory_budget", "8EiB", "at most 1048576GiB"),
        ("request_memory", "8EiB", "at most 1048576GiB"),
        ("max_jobs", "18446744073709551615", "at most 16777216"),
        ("keep_finished", "18446744073709551615", "at most 16777216"),
        ("shutdown_grace", "584542046090years", "at most 7days"),
        ("memory_budget", "10B", "at least 64MiB"),
        ("preload", "porep-1k", "unknown circuit \"porep-1k\""),
        ("log", "a=b=c", "found 'a=b=c'"),
        ("params_dir", "", "expected a folder's"),
        ("native_dir", "", "expected a folder's"),
        ("listen", "", "no address to listen on"),
    ] {
        let flag = format!("--{}", flag.replace('_', "-"));
        let says = refused(cuzk(&["serve", &flag, value]), 2);
        assert!(says.contains(expected) && says.contains(&format!("(flag {flag})")), "{says}");
    }
    assert!(done(cuzk(&["config", "--memory-budget", "10B"])).contains("10B"), "asking is free");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cuzk.toml");
    fs::write(&file, "listen = 5").unwrap();
    let says = refused(cuzk(&["config", "--config", path(&file)]), 2);
    assert!(says.contains("expected a text, or a list of texts"), "{says}");

    let with = |key: &str, value: &[u8]| {
        let mut command = cuzk(&["config"]);
        command.env(key, OsStr::from_bytes(value));
        command
    };
    let says = refused(with("CUZK_PARAMS_DIR", b"/tmp/\xff"), 2);
    assert!(says.contains("CUZK_PARAMS_DIR") && says.contains("expected UTF-8"), "{says}");
    assert!(refused(with("CUZK_CONFIG", b""), 2).contains("CUZK_CONFIG has to name a file"));
    let unset = done(with("FIL_PROOFS_PARAMETER_CACHE", b""));
    assert!(unset.contains("/var/tmp/filecoin-proof-parameters "), "{unset}");
}

#[test]
fn a_damaged_native_file_is_logged_once_and_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let request = request(folder.path(), 5);
    let prove = || {
        let proof = folder.path().join("proof");
        let mut command = cuzk(&["prove", "--params-dir", path(parameters())]);
        command.args(["--native-dir", path(folder.path()), "--output", path(&proof)]);
        let output = command.args(&request).output().unwrap();
        let says = text(&output.stderr);
        assert_eq!(code(&output), 0, "{says}");
        says.matches("native srs unusable").count()
    };
    assert_eq!(prove(), 0);
    let srs = |entry: &fs::DirEntry| entry.path().extension() == Some(OsStr::new("srs"));
    let native = fs::read_dir(folder.path()).unwrap().flatten().find(srs).unwrap().path();
    fs::write(&native, "no parameters").unwrap();
    assert_eq!(prove(), 1);
    assert_eq!(prove(), 0);
}

#[test]
fn who_has_to_wait_for_parameters_says_for_whom() {
    let folder = tempfile::tempdir().unwrap();
    let file = fs::read_dir(parameters()).unwrap().flatten().map(|entry| entry.file_name());
    let name = file.map(|name| name.into_string().unwrap()).find(|name| name.ends_with(".params"));
    let file = folder.path().join(name.unwrap());
    let partial = fs::File::create(file.with_extension("params.partial")).unwrap();
    partial.lock().unwrap();
    let make = ["params", "dev", "wpost-2k", "--dir", path(folder.path())];
    let mut waiting = cuzk(&make).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut says = BufReader::new(waiting.stderr.take().unwrap());
    says.read_line(&mut line).unwrap();
    let expected = format!(
        "development parameters wpost-2k: waiting for process {}, which writes {}\n",
        std::process::id(),
        file.display()
    );
    assert_eq!(line, expected);
    drop(partial);
    // What was said goes unread.
    assert!(waiting.wait().unwrap().success());
    assert!(file.exists(), "it goes on when the other has given up");
}

/// Its connections are accepted by the kernel alone.
#[test]
fn a_daemon_that_does_not_answer_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cuzk.sock");
    let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let server = format!("--server=unix://{}", socket.display());
    assert!(refused(cuzk(&["status", &server]), 3).contains("no answer within 10 s"));
}

#[test]
fn exit_codes_tell_wrong_use_from_nobody_there() {
    let nobody = "--server=unix:///not/there.sock";
    assert!(refused(cuzk(&["status", nobody]), 3).starts_with("error: no daemon answers on unix:"));
    assert!(refused(cuzk(&["cancel", "j", nobody]), 3).contains("`cuzk serve`"));
    refused(cuzk(&["no-such-command"]), 2);
    refused(cuzk(&["status", "--server=nonsense"]), 2);
    refused(cuzk(&["params", "dev", "porep-1k"]), 2);
    assert!(refused(cuzk(&["prove", "/not/there"]), 2).starts_with("error: /not/there: No such"));
    let no_request = refused(cuzk(&["prove", "/proc/self/cmdline"]), 2);
    assert!(no_request.contains("vanilla_proof: expected C1 output as JSON"), "{no_request}");
    assert!(refused(cuzk(&["serve", "--preload", "porep-1k"]), 2)
        .contains("unknown circuit \"porep-1k\""));
    let folder = tempfile::tempdir().unwrap();
    let check = ["params", "check", "--params-dir", path(folder.path())];
    assert!(refused(cuzk(&check), 1).contains("no parameter files in "));
}

/// As in `cuzk … 2>&1 | head -1`.
#[test]
fn that_nobody_reads_the_messages_changes_no_exit_code() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = cuzk(&["status", "--server=unix:///not/there.sock"]);
    assert_eq!(command.stderr(writer).status().unwrap().code(), Some(3));
}

#[test]
fn help_and_completions_are_printed() {
    assert!(done(cuzk(&["--help"])).contains("Exit codes:"));
    for command in ["serve", "prove", "verify", "demo"] {
        assert!(done(cuzk(&[command, "--help"])).contains("Examples:"), "{command}");
    }
    assert!(done(cuzk(&["completions", "bash"])).contains("_cuzk"));
}

#[test]
fn a_proof_is_made_checked_and_told_from_another() {
    let folder = tempfile::tempdir().unwrap();
    let (request, other) = (request(folder.path(), 1), request(folder.path(), 2));
    let proof = folder.path().join("proof");
    let with = |command: &str, request: &[String], more: &[&str]| {
        let mut command = cuzk(&[command, "--params-dir", path(parameters())]);
        command.args(request).args(more);
        command
    };
    done(with("prove", &request, &["--output", path(&proof)]));
    assert_eq!(fs::metadata(&proof).unwrap().len(), 192);
    let valid = "valid: 1 partition(s) of window-post\n";
    assert_eq!(done(with("verify", &request, &["--proof", path(&proof)])), valid);

    let says = refused(with("verify", &other, &["--proof", path(&proof)]), 4);
    assert_eq!(says, "error: the proof is not valid: it does not prove this request\n");
    let digits = folder.path().join("digits");
    fs::write(&digits, hex::encode(fs::read(&proof).unwrap()) + "\n").unwrap();
    assert_eq!(done(with("verify", &request, &["--proof", path(&digits)])), valid);
    fs::write(&digits, [0; 192]).unwrap();
    refused(with("verify", &request, &["--proof", path(&digits)]), 4);
    fs::write(&digits, "short").unwrap();
    let says = refused(with("verify", &request, &["--proof", path(&digits)]), 4);
    assert!(says.contains("has 192 bytes, found 5"), "{says}");
}

#[test]
fn the_demo_ends_well_only_with_verified_proofs() {
    let arguments = ["demo", "--kind", "window-post", "--json", "--params-dir", path(parameters())];
    let shown: serde_json::Value = serde_json::from_str(&done(cuzk(&arguments))).unwrap();
    let proof = &shown["proofs"][0];
    assert_eq!((&proof["kind"], &proof["verified"]), (&"window-post".into(), &true.into()));
    assert_eq!(proof["constraints"], 21_889);
    assert!(proof["peak_bytes"].as_u64().unwrap() > 1 << 20, "{proof}");
}

#[test]
fn a_daemon_proves_for_other_processes_and_ends_in_order_on_sigterm() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cuzk.sock");
    let mut server = Server::start(&socket, &[]);
    let server_flag = format!("--server={}", server.address);
    let mut prove = cuzk(&["prove", "--json", &server_flag]);
    prove.args(request(folder.path(), 3));
    let proof: serde_json::Value = serde_json::from_str(&done(prove)).unwrap();
    assert_eq!(proof["proof"].as_str().unwrap().len(), 2 * 192);

    let shown: serde_json::Value =
        serde_json::from_str(&done(cuzk(&["status", "--json", &server_flag]))).unwrap();
    assert_eq!(shown["total_proofs_completed"], 1);
    assert!(done(cuzk(&["status", &server_flag])).contains("1 completed, 0 failed"));
    assert!(refused(cuzk(&["cancel", "j-1", &server_flag]), 2).contains("no job j-1"));

    server.signal("TERM");
    assert_eq!(server.ended(Duration::from_secs(10)), 0);
    assert!(!socket.exists(), "the socket is gone");
}

#[test]
fn a_daemon_raises_its_limit_of_open_files() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cuzk.sock");
    let script = format!(
        "ulimit -Sn 300 && ulimit -Hn 2000 && exec {} serve --listen unix://{} --params-dir {}",
        env!("CARGO_BIN_EXE_cuzk"),
        socket.display(),
        path(parameters())
    );
    let process = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn();
    let mut server = Server { process: process.unwrap(), address: String::new() };
    let mut line = String::new();
    BufReader::new(server.process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.process.id())).unwrap();
    let limit = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(limit.split_whitespace().skip(3).take(2).collect::<Vec<_>>(), ["2000", "2000"]);
    server.signal("TERM");
    assert_eq!(server.ended(Duration::from_secs(10)), 0);
}

#[test]
fn one_signal_of_either_kind_lets_jobs_end_and_the_daemon_exit_with_0() {
    for signal in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("cuzk.sock");
        let mut server = Server::start(&socket, &["--shutdown-grace", "1h", "--threads", "1"]);
        let mut jobs = Jobs::submit(&socket, 5);
        assert_eq!(jobs.last(|| server.signal(signal)), Ended::Completed, "SIG{signal}");
        assert_eq!(server.ended(PATIENCE), 0, "SIG{signal}");
        assert!(!socket.exists(), "SIG{signal}: the socket is gone");
    }
}

#[test]
fn cancel_ends_a_job_that_waits() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cuzk.sock");
    let server = Server::start(&socket, &["--threads", "1"]);
    let mut jobs = Jobs::submit(&socket, 20);
    let last = &jobs.ids[19];
    let said = done(cuzk(&["cancel", last, &format!("--server={}", server.address)]));
    assert_eq!(said, format!("job {last} was not running\n"));
    assert_eq!(jobs.last(|| ()), Ended::Cancelled);
}

#[test]
fn a_second_signal_ends_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cuzk.sock");
    let mut server = Server::start(&socket, &["--shutdown-grace", "1h", "--threads", "1"]);
    Jobs::submit(&socket, 20);
    server.signal("INT");
    server.signal("TERM");
    thread::sleep(Duration::from_millis(500));
    assert!(
        server.process.try_wait().unwrap().is_none(),
        "an echo of the first counts for nothing"
    );
    server.signal("TERM");
    assert_eq!(server.ended(Duration::from_secs(5)), 130);
}

#[test]
fn after_a_kill_the_next_daemon_takes_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("cuzk.sock");
    let mut killed = Server::start(&socket, &[]);
    killed.signal("KILL");
    killed.ended(PATIENCE);
    assert!(socket.exists(), "left behind");
    let mut next = Server::start(&socket, &[]);
    next.signal("TERM");
    assert_eq!(next.ended(PATIENCE), 0);
}
