//! What lanes promise, with jobs that do as a test tells them.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use cuzk_governor::budget::Ask;
use cuzk_governor::policy::Action;
use tempfile::TempDir;

use super::*;

type Run = dyn Fn(&mut Admitted<'_>) -> Result<Vec<u8>, WorkError> + Send + Sync;

/// A job of one partition, with buffers of so many chunks.
struct Told {
    name: &'static str,
    priority: Priority,
    chunks: usize,
    run: Box<Run>,
}

impl Work for Told {
    fn kind(&self) -> ProofKind {
        ProofKind::WindowPostPartition
    }

    fn priority(&self) -> Priority {
        self.priority
    }

    fn request_id(&self) -> &str {
        self.name
    }

    fn content_hash(&self) -> blake3::Hash {
        blake3::hash(self.name.as_bytes())
    }

    fn body_bytes(&self) -> u64 {
        1
    }

    fn partitions(&self) -> usize {
        1
    }

    fn path(&self) -> String {
        "told".into()
    }

    fn footprint(&self) -> Result<Footprint, ParamsError> {
        Ok(Footprint { buffers: (self.chunks * CHUNK_BYTES) as u64, heap: 1 << 20 })
    }

    fn run(&self, _: usize, admitted: &mut Admitted<'_>) -> Result<Vec<u8>, WorkError> {
        (self.run)(admitted)
    }
}

struct Scene {
    engine: Arc<Engine>,
    _folder: TempDir,
}

impl Scene {
    fn new(concurrency: u32) -> Self {
        Self::with_memory(concurrency, 1 << 30)
    }

    fn with_memory(concurrency: u32, memory_budget: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = EngineConfig {
            params_dir: folder.path().into(),
            native_dir: None,
            threads: 1,
            concurrency,
            memory_budget,
            max_jobs: 100,
            keep_finished: 100,
        };
        Self { engine: Engine::start(config).unwrap(), _folder: folder }
    }

    fn submit(
        &self,
        name: &'static str,
        priority: Priority,
        run: impl Fn(&mut Admitted<'_>) -> Result<Vec<u8>, WorkError> + Send + Sync + 'static,
    ) -> JobId {
        self.submit_large(name, priority, 1, run)
    }

    fn submit_large(
        &self,
        name: &'static str,
        priority: Priority,
        chunks: usize,
        run: impl Fn(&mut Admitted<'_>) -> Result<Vec<u8>, WorkError> + Send + Sync + 'static,
    ) -> JobId {
        let work = Told { name, priority, chunks, run: Box::new(run) };
        self.engine.submit_work(Arc::new(work)).unwrap().job_id
    }

    fn result(&self, job: &JobId) -> JobResult {
        let deadline = Instant::now() + Duration::from_secs(10);
        self.engine.wait(job, deadline).unwrap().expect("it ends").result.clone()
    }
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}: not in 10 s");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_panic_in_a_partition_is_its_jobs_failure_and_nobody_elses() {
    let scene = Scene::new(2);
    let bad = scene.submit("bad", Priority::Normal, |_| panic!("no such node"));
    let good = scene.submit("good", Priority::Normal, |_| Ok(vec![1]));
    match scene.result(&bad) {
        JobResult::Failed(why) => assert_eq!(why, "proving panicked: no such node"),
        other => panic!("{other:?}"),
    }
    assert_eq!(scene.result(&good), JobResult::Completed(vec![1]));
    let after = scene.submit("after", Priority::Normal, |_| Ok(vec![2]));
    assert_eq!(scene.result(&after), JobResult::Completed(vec![2]));
    assert_eq!(scene.engine.budget().usage().reserved, 0);
}

#[test]
fn a_wrong_result_is_made_again_by_one_who_knows() {
    let scene = Scene::new(1);
    let job = scene.submit("again", Priority::Normal, |admitted| match admitted.tries() {
        1 => Err(WorkError::Again),
        tries => Ok(vec![tries as u8]),
    });
    assert_eq!(scene.result(&job), JobResult::Completed(vec![2]));
}

#[test]
fn the_most_urgent_start_first_and_of_them_the_oldest() {
    let scene = Scene::new(1);
    let (goes_on, order) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(vec![])));
    let told = |name, priority| {
        let (goes_on, order) = (Arc::clone(&goes_on), Arc::clone(&order));
        scene.submit(name, priority, move |_| {
            order.lock().push(name);
            until("the last one is there", || goes_on.load(Ordering::Relaxed));
            Ok(vec![])
        })
    };
    let mut jobs = vec![told("first", Priority::Normal)];
    until("the first one runs", || order.lock().len() == 1);
    for (name, priority) in [
        ("low", Priority::Low),
        ("normal", Priority::Normal),
        ("younger", Priority::Normal),
        ("high", Priority::High),
    ] {
        jobs.push(told(name, priority));
    }
    goes_on.store(true, Ordering::Relaxed);
    jobs.iter().for_each(|job| assert_eq!(scene.result(job), JobResult::Completed(vec![])));
    assert_eq!(*order.lock(), ["first", "high", "normal", "younger", "low"]);
}

#[test]
fn no_more_run_at_once_than_may_and_two_critical_ones_beside_them() {
    let scene = Scene::new(3);
    let goes_on = Arc::new(AtomicBool::new(false));
    let told = |priority, names: &[&'static str]| {
        let inside = Arc::new(AtomicUsize::new(0));
        for name in names {
            let (goes_on, inside) = (Arc::clone(&goes_on), Arc::clone(&inside));
            scene.submit(name, priority, move |_| {
                inside.fetch_add(1, Ordering::Relaxed);
                until("all were looked at", || goes_on.load(Ordering::Relaxed));
                Ok(vec![])
            });
        }
        inside
    };
    let normal = told(Priority::Normal, &["a", "b", "c", "d", "e"]);
    let critical = told(Priority::Critical, &["f", "g", "h"]);
    let inside = || [&normal, &critical].map(|inside| inside.load(Ordering::Relaxed));
    until("as many as may run", || inside() == [3, 2]);
    thread::sleep(Duration::from_millis(100));
    assert_eq!(inside(), [3, 2]);
    goes_on.store(true, Ordering::Relaxed);
    until("all have run", || inside() == [5, 3]);
}

#[test]
fn what_a_partition_lacks_is_taken_from_less_urgent_ones_alone() {
    let scene = Scene::with_memory(3, 8 << 20); // one at a time
    let goes_on = Arc::new(AtomicBool::new(false));
    let told = |name, priority| {
        let goes_on = Arc::clone(&goes_on);
        scene.submit(name, priority, move |admitted| {
            while !goes_on.load(Ordering::Relaxed) && name != "urgent" {
                admitted.host().check()?;
                thread::sleep(Duration::from_millis(1));
            }
            Ok(vec![])
        })
    };
    let first = told("first", Priority::Normal);
    until("it runs", || !scene.engine.status().running.is_empty());
    let equal = told("equal", Priority::Normal);
    until("it waits for memory", || scene.engine.budget().usage().waiting > 0);
    thread::sleep(Duration::from_millis(50));
    assert_eq!(scene.engine.status().partitions_shed, 0);
    let urgent = told("urgent", Priority::High);
    assert_eq!(scene.result(&urgent), JobResult::Completed(vec![]));
    until("one was shed", || scene.engine.status().partitions_shed == 1);
    goes_on.store(true, Ordering::Relaxed);
    for job in [first, equal] {
        assert_eq!(scene.result(&job), JobResult::Completed(vec![]));
    }
}

#[test]
fn a_job_that_waits_for_memory_in_vain_is_refused_with_both_numbers() {
    let scene = Scene::new(1);
    let budget = scene.engine.budget();
    let _all = budget.try_reserve(Ask::new("pinned", budget.usage().total)).unwrap();
    let job = scene.submit("large", Priority::Normal, |_| Ok(vec![]));
    until("it waits for memory", || scene.engine.budget().usage().waiting > 0);
    scene.engine.plant().apply(Action::Refuse { asked: 5 << 20, possible: 1_000_000 });
    match scene.result(&job) {
        JobResult::Failed(why) => {
            assert!(why.contains("needs 5") && why.contains("1000000"), "{why}")
        }
        other => panic!("{other:?}"),
    }
}

/// Takes a buffer of so many chunks.
fn takes(chunks: usize) -> impl Fn(&mut Admitted<'_>) -> Result<Vec<u8>, WorkError> + Send + Sync {
    move |admitted| {
        admitted.scalars(chunks * CHUNK_BYTES / 32)?;
        Ok(vec![])
    }
}

#[test]
fn idle_chunks_are_given_up_for_a_partition_that_lacks_memory() {
    let scene = Scene::with_memory(1, 12 << 20);
    let shared = &scene.engine.shared;
    shared.pool.keep_idle(shared.budget.clone());
    let small = scene.submit("small", Priority::Normal, takes(1));
    scene.result(&small);
    assert_eq!(shared.pool.status().idle, CHUNK_BYTES as u64);
    let large = scene.submit_large("large", Priority::Normal, 2, |_| Ok(vec![]));
    assert_eq!(scene.result(&large), JobResult::Completed(vec![]));
    assert_eq!(shared.pool.status().idle, 0);
}

#[test]
fn buffers_of_one_that_failed_are_not_kept_for_the_next() {
    let scene = Scene::new(1);
    let shared = &scene.engine.shared;
    shared.pool.keep_idle(shared.budget.clone());
    let failed = scene.submit("failed", Priority::Normal, |admitted| {
        let _buffer = admitted.scalars(1)?;
        panic!("with a buffer")
    });
    scene.result(&failed);
    assert_eq!((shared.pool.status().idle, shared.budget.usage().reserved), (0, 0));
}

#[test]
fn a_partition_is_spared_outside_emergencies_once_it_was_shed_twice() {
    use cuzk_governor::policy::Shed;
    let class = running::shed_class;
    for priority in [Priority::Low, Priority::Normal] {
        assert_eq!([0, 1].map(|sheds| class(priority, sheds)), [Shed::Freely; 2]);
        assert_eq!(class(priority, 2), Shed::InEmergency);
    }
    assert_eq!(class(Priority::High, 0), Shed::InEmergency);
    assert_eq!(class(Priority::Critical, 0), Shed::Never);
}

#[test]
fn a_partition_that_was_once_larger_than_the_memory_there_is_still_runs_alone() {
    let scene = Scene::with_memory(1, 16 << 20);
    let shared = &scene.engine.shared;
    let predicted = Footprint { buffers: CHUNK_BYTES as u64, heap: 1 << 20 };
    shared.learned.measure("told", predicted, 1 << 40);
    let job = scene.submit("alone", Priority::Normal, takes(1));
    assert_eq!(scene.result(&job), JobResult::Completed(vec![]));
}

#[test]
fn a_partition_asks_for_less_once_there_is_less_to_be_had() {
    let scene = Scene::with_memory(1, 64 << 20);
    let shared = &scene.engine.shared;
    let predicted = Footprint { buffers: CHUNK_BYTES as u64, heap: 1 << 20 };
    shared.learned.measure("told", predicted, 1 << 40);
    let all = shared.budget.try_reserve(Ask::new("others", 60 << 20)).unwrap();
    let job = scene.submit("alone", Priority::Critical, takes(1));
    until("it waits for memory", || shared.budget.usage().waiting > 0);
    shared.budget.set_total(16 << 20);
    drop(all);
    assert_eq!(scene.result(&job), JobResult::Completed(vec![]));
}

#[test]
fn a_failed_partition_teaches_nothing_about_its_footprint() {
    let scene = Scene::new(1);
    let shared = &scene.engine.shared;
    let predicted = Footprint { buffers: CHUNK_BYTES as u64, heap: 1 << 20 };
    let before = shared.learned.ask("told", predicted, u64::MAX);
    let job = scene.submit("bad", Priority::Normal, |admitted| {
        admitted.running.account.enter(1 << 30);
        Err(WorkError::Panicked("too much".into()))
    });
    assert!(matches!(scene.result(&job), JobResult::Failed(_)));
    assert_eq!(shared.learned.ask("told", predicted, u64::MAX), before);
}

#[test]
fn a_shed_partition_keeps_its_place_however_often_lanes_look() {
    let scene = Scene::new(1);
    let shared = &scene.engine.shared;
    let (goes_on, overtaken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let first = {
        let goes_on = Arc::clone(&goes_on);
        scene.submit("first", Priority::Normal, move |admitted| {
            while !goes_on.load(Ordering::Relaxed) {
                admitted.host().check()?;
                thread::yield_now();
            }
            Ok(vec![])
        })
    };
    until("the first one runs", || !scene.engine.status().running.is_empty());
    let second = {
        let (goes_on, overtaken) = (Arc::clone(&goes_on), Arc::clone(&overtaken));
        scene.submit("second", Priority::Normal, move |_| {
            overtaken.fetch_or(!goes_on.load(Ordering::Relaxed), Ordering::Relaxed);
            Ok(vec![])
        })
    };
    let (done, looks) = (Arc::new(AtomicBool::new(false)), Arc::clone(shared));
    let noisy = {
        let done = Arc::clone(&done);
        thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                looks.changed.notify_all();
            }
        })
    };
    for sheds in 1..=300 {
        until("one runs", || !shared.state.lock().running.is_empty());
        let id = shared.state.lock().running.first().map(|running| running.id);
        shared.apply(Action::Shed(id.unwrap_or_default()));
        until("it was shed", || shared.state.lock().sheds >= sheds);
        if overtaken.load(Ordering::Relaxed) {
            break;
        }
    }
    goes_on.store(true, Ordering::Relaxed);
    for job in [first, second] {
        assert_eq!(scene.result(&job), JobResult::Completed(vec![]));
    }
    done.store(true, Ordering::Relaxed);
    noisy.join().unwrap();
    assert!(!overtaken.load(Ordering::Relaxed));
}
