//! How fast the embedded store is: `cargo run --release -p tenure-embedded --example embedded_bench [DIRECTORY]`.
//!
//! Prints acquire+release per second in one process (1 task, 64 tasks) and across 4 processes (own locks, one lock), what
//! opening costs, and how long a hand-over between two processes takes, from the call of `release` in one to the return of `acquire`
//! in the other. All through `Locks`, as a program would.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure_core::clock::{Clock as _, SystemClock};
use tenure_core::{BootInstant, Locks};
use tenure_embedded::{Config, Embedded};

const SPAN: Duration = Duration::from_secs(3);
const PROCESSES: usize = 4;
const HANDOVERS: usize = 20_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--pairs", directory, tasks, prefix] => {
            println!("{}", pairs(directory.into(), tasks.parse().expect("a number"), prefix));
        }
        ["--handover", directory] => handover(directory.into()),
        rest => {
            let scratch = std::env::temp_dir().join(format!("tenure-bench-{}", std::process::id()));
            let directory = rest.first().map_or_else(|| scratch.clone(), PathBuf::from);
            report(&directory);
            let _ = std::fs::remove_dir_all(scratch);
        }
    }
}

fn report(directory: &Path) {
    println!("store: file:{}", directory.display());
    println!("one process, 1 task:            {:>9} acquire+release/s", pairs(directory.into(), 1, "a"));
    println!("one process, 64 tasks:          {:>9} acquire+release/s", pairs(directory.into(), 64, "a"));
    println!("one process, 64 tasks, 4 locks: {:>9} acquire+release/s", pairs(directory.into(), 64, "4"));
    println!("4 processes, 1 task each:       {:>9} acquire+release/s", across(directory, 1, "own"));
    println!("4 processes, 16 tasks each:     {:>9} acquire+release/s", across(directory, 16, "own"));
    println!("4 processes, one lock:          {:>9} acquire+release/s", across(directory, 1, "same"));
    println!("open and close:                  {:>9.1} µs", opens(directory));
    let mut took = handovers(directory);
    took.sort_unstable();
    let micros = |share: f64| took[(took.len() as f64 * share) as usize].as_nanos() as f64 / 1000.0;
    println!(
        "hand-over between 2 processes:   p50 {:.1} µs  p90 {:.1} µs  p99 {:.1} µs  max {:.1} µs ({} of them)",
        micros(0.5),
        micros(0.9),
        micros(0.99),
        micros(0.999_999),
        took.len()
    );
}

/// How many acquire+release a second `tasks` tasks do. Names: of their own, or the same.
fn pairs(directory: PathBuf, tasks: usize, prefix: &str) -> u64 {
    let runtime = if tasks == 1 {
        tokio::runtime::Builder::new_current_thread().enable_all().build()
    } else {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
    };
    runtime.expect("a runtime").block_on(async {
        let locks = Locks::new(Embedded::open(Config::at(directory)).expect("the store opens"));
        let start = SystemClock.now();
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let locks = locks.clone();
                let name = match prefix {
                    "own" => format!("{}/{task}", std::process::id()),
                    "same" => "same".to_string(),
                    "4" => format!("four/{}", task % 4),
                    _ => format!("task/{task}"),
                };
                tokio::spawn(async move {
                    let mut count = 0_u64;
                    while SystemClock.now() < start + SPAN {
                        let guard = locks.lock(&name).acquire().await.expect("a grant");
                        guard.release().await.expect("released");
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let mut total = 0;
        for task in running {
            total += task.await.expect("no panic");
        }
        total * 1_000_000
            / u64::try_from(SystemClock.now().saturating_since(start).as_micros()).expect("small")
    })
}

/// How long it takes to open a store that is there, and to close it: what a command line pays.
fn opens(directory: &Path) -> f64 {
    const TIMES: u32 = 200;
    let start = SystemClock.now();
    for _ in 0..TIMES {
        drop(Embedded::open(Config::at(directory)).expect("the store opens"));
    }
    SystemClock.now().saturating_since(start).as_nanos() as f64 / 1000.0 / f64::from(TIMES)
}

fn me(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(arguments).stdout(Stdio::piped()).stdin(Stdio::piped());
    command
}

fn across(directory: &Path, tasks: usize, prefix: &str) -> u64 {
    let directory = directory.to_str().expect("UTF-8");
    let children: Vec<Child> = (0..PROCESSES)
        .map(|_| me(&["--pairs", directory, &tasks.to_string(), prefix]).spawn().expect("a child"))
        .collect();
    let outputs = children.into_iter().map(|child| child.wait_with_output().expect("it ends"));
    outputs
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().expect("a number"))
        .sum()
}

/// One side of a hand-over: takes the lock, says when it had it and when it let go, over and over.
fn handover(directory: PathBuf) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = Locks::new(Embedded::open(Config::at(directory)).expect("the store opens"));
        let mut moments = Vec::with_capacity(HANDOVERS);
        println!("ready");
        std::io::stdin().lock().read_line(&mut String::new()).expect("go");
        for _ in 0..HANDOVERS {
            let guard = locks.lock("baton").acquire().await.expect("a grant");
            let held = SystemClock.now();
            let token = guard.token();
            // Until the other side stands in line, there is nobody to hand it to.
            while locks.inspect("baton").await.expect("the store answers").waiters.is_empty() {
                if SystemClock.now() > held + Duration::from_millis(200) {
                    break;
                }
            }
            let released = SystemClock.now();
            guard.release().await.expect("released");
            moments.push((token, held, released));
        }
        let mut out = std::io::stdout().lock();
        for (token, held, released) in moments {
            writeln!(out, "{token} {} {}", held.as_nanos(), released.as_nanos())
                .expect("the other side reads");
        }
    });
}

fn handovers(directory: &Path) -> Vec<Duration> {
    let directory = directory.to_str().expect("UTF-8");
    let mut children: Vec<Child> =
        (0..2).map(|_| me(&["--handover", directory]).spawn().expect("a child")).collect();
    let mut readers: Vec<_> =
        children.iter_mut().map(|child| BufReader::new(child.stdout.take().expect("piped"))).collect();
    for reader in &mut readers {
        reader.read_line(&mut String::new()).expect("ready");
    }
    for child in &mut children {
        child.stdin.take().expect("piped").write_all(b"go\n").expect("it reads");
    }
    let mut moments: Vec<(u64, usize, BootInstant, BootInstant)> = Vec::new();
    for (side, reader) in readers.into_iter().enumerate() {
        for line in reader.lines() {
            let line = line.expect("it writes");
            let mut numbers = line.split(' ').map(|number| number.parse::<u64>().expect("a number"));
            let mut next = || numbers.next().expect("three numbers");
            let (token, held, released) = (next(), next(), next());
            moments.push((token, side, BootInstant::from_nanos(held), BootInstant::from_nanos(released)));
        }
    }
    for mut child in children {
        child.wait().expect("it ends");
    }
    moments.sort_unstable();
    let changed_hands = moments.windows(2).filter(|pair| pair[0].1 != pair[1].1);
    changed_hands.map(|pair| pair[1].2.saturating_since(pair[0].3)).collect()
}
