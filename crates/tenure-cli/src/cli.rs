//! The command line: every command, flag and default, and the checks that need no store.
//!
//! A default is written once, here, at its flag. What a command does is in `commands/`.

#![expect(clippy::doc_markdown, reason = "these comments are the help that people read")]

mod values;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use tenure::{LockName, Reason, Ttl};

use values::{duration, keep, name, not_empty, parties, permits, reason, seconds, span, ttl};

const EXAMPLES: &str = "\
Examples:
  tenure run nightly-report --wait 10s -- ./report.sh   exit 75 if another is at it for longer than that
  tenure run migrate -- ./migrate                       the second one waits
  tenure once invoice/1001 -- ./send-invoice 1001       the second time only prints what the first did
  tenure ls                                             who holds what, since when, who waits
  eval \"$(tenure acquire deploy --ttl 10m --export)\"    hold it across commands: renew, check, release

Exit codes: 0 done, 1 answered no, 2 usage, 69 store unavailable, 70 internal, 75 busy or timed out, 76 lost,
77 not permitted, 78 bad configuration. `run`, `once` and `elect` pass on the command's own.";

/// One party at a time: run things under a lock, see who holds what.
#[derive(Debug, Parser)]
#[command(name = "tenure", version, long_version = long_version(), after_help = EXAMPLES)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

fn long_version() -> &'static str {
    use std::sync::LazyLock;
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        // A store inside one process is no use to a command.
        let stores = tenure::STORES.iter().filter(|store| **store != "memory");
        let stores: String = stores.map(|store| format!(" {store}:")).collect();
        format!("{}\nstores:{stores}", env!("CARGO_PKG_VERSION"))
    });
    &TEXT
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Global {
    /// Where the locks are: file:DIR, redis://HOST, redis+sentinel://HOST,HOST/NAME, redis+cluster://HOST,HOST [env: TENURE_STORE] [default: file:/tmp/tenure-UID, for this user]
    #[arg(long, global = true, value_name = "URL", value_parser = not_empty)]
    pub(crate) store: Option<String>,
    /// Put every name inside this namespace: `a` is then `NS/a` [env: TENURE_NAMESPACE]
    #[arg(long, global = true, value_name = "NS", value_parser = not_empty)]
    pub(crate) namespace: Option<String>,
    /// Answer in JSON
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// How messages on stderr look
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: LogFormat,
    /// Tell more on stderr: -v what goes wrong and is tried again, -vv every step
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command while the lock is held
    Run(Run),
    /// Run a command once: whoever comes later gets its output
    Once(Once),
    /// Run a command while this machine leads
    Elect(Elect),
    /// Take a lock and print its claim; it lives until it is released or its ttl ends
    Acquire(Acquire),
    /// Renew a claim that `acquire` printed
    Renew(Renew),
    /// Give back a claim that `acquire` printed
    Release(Release),
    /// Ask whether a lock is held: exit 0 if it is, 1 if it is free
    Check(Check),
    /// List locks: who holds them, who waits
    Ls(Ls),
    /// Show one lock: who holds it, who waits
    Show(Show),
    /// Follow one lock, or all of them, until interrupted
    Watch(Watch),
    /// Take a lock away from its holders
    Evict(Evict),
    /// Examine the store: what it promises under which fault, and what to change
    Doctor(Doctor),
    /// Measure how fast the store is from here
    Bench(Bench),
    /// Print the completions for a shell
    Completions(Completions),
    /// Print the manual page
    Man,
}

/// How long a lock lives without renewal.
#[derive(Debug, Args)]
pub(crate) struct TtlArg {
    /// How long the lock lives without renewal: what others wait if this machine dies
    #[arg(long, value_name = "DUR", default_value = "30s", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Ttl,
}

/// How long to wait. For ever, if nothing is said.
#[derive(Debug, Args)]
pub(crate) struct WaitArgs {
    /// Wait this long for the lock, then exit 75 [default: for ever]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true, conflicts_with_all = ["seconds", "no_wait"])]
    wait: Option<Duration>,
    /// The same in seconds, as flock(1) has it
    #[arg(short = 'w', value_name = "SECS", id = "seconds", value_parser = seconds, allow_hyphen_values = true, conflicts_with = "no_wait")]
    seconds: Option<Duration>,
    /// Do not wait: the same as --wait 0
    #[arg(short = 'n', id = "no_wait")]
    no_wait: bool,
}

impl WaitArgs {
    /// `None`: for ever.
    pub(crate) fn wait(&self) -> Option<Duration> {
        if self.no_wait { Some(Duration::ZERO) } else { self.wait.or(self.seconds) }
    }
}

/// How long a command has to end by itself.
#[derive(Debug, Args)]
pub(crate) struct GraceArg {
    /// How long the command has between TERM and KILL [default: 5s, or a quarter of the ttl if that is less]
    #[arg(long, value_name = "DUR", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,
}

/// What is told to whoever looks.
#[derive(Debug, Args)]
pub(crate) struct ReasonArg {
    /// Why, for others to read
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub(crate) reason: Option<Reason>,
}

/// How to hold it. Alone, if nothing is said.
#[derive(Debug, Args)]
pub(crate) struct ModeArgs {
    /// Hold it together with other shared holders
    #[arg(short = 's', long, conflicts_with_all = ["permits", "exclusive"])]
    pub(crate) shared: bool,
    /// Hold N of the M permits that the lock has
    #[arg(long, value_name = "N/M", value_parser = permits, conflicts_with = "exclusive")]
    pub(crate) permits: Option<(u32, u32)>,
    /// Hold it alone, which is the default
    #[arg(short = 'x', long, visible_short_alias = 'e')]
    exclusive: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure run backup -- ./backup.sh                 wait for ever
  tenure run backup -n -- ./backup.sh              exit 75 if it is busy
  tenure run gpu --permits 1/4 -- ./train          at most four at a time
  tenure run report -s --ttl 1m -- ./read-only     together with other readers

The command sees TENURE_LOCK, TENURE_TOKEN and TENURE_STORE_KIND. It is ended before the lease is: TERM at --grace
before that, then KILL, to it and all its descendants.")]
pub(crate) struct Run {
    /// The lock
    #[arg(value_parser = name)]
    pub(crate) name: LockName,
    #[command(flatten)]
    pub(crate) ttl: TtlArg,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    /// What becomes of the command when the lock is lost
    #[arg(long, value_name = "HOW", default_value = "term")]
    pub(crate) on_lost: OnLost,
    #[command(flatten)]
    pub(crate) grace: GraceArg,
    /// Exit with this code, not 75, when the lock is busy
    #[arg(short = 'E', value_name = "CODE")]
    pub(crate) busy_code: Option<u8>,
    #[command(flatten)]
    pub(crate) reason: ReasonArg,
    #[command(flatten)]
    pub(crate) foreign: FlockLetters,
    /// The command and its arguments; no shell is involved
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure once invoice/1001 -- ./send-invoice 1001      the second time prints what the first did, and sends nothing
  tenure once migrate-v7 --keep 30d -- ./migrate       a failed one is free for the next caller at once
  tenure once invoice/1001 --status                    0 done, 1 open, 75 in progress
  tenure once invoice/1001 --forget                    the next caller runs it again

Only exit 0 counts as done. What the command writes to stdout is passed on as it comes; 256 KiB of it are kept.")]
pub(crate) struct Once {
    /// What is to be done once
    #[arg(value_parser = name)]
    pub(crate) name: LockName,
    /// How long it stays done, and its output is kept
    #[arg(long, value_name = "DUR", default_value = "24h", value_parser = keep, allow_hyphen_values = true)]
    pub(crate) keep: Duration,
    #[command(flatten)]
    pub(crate) ttl: TtlArg,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) grace: GraceArg,
    /// Exit with this code, not 75, when another call is at it
    #[arg(short = 'E', value_name = "CODE")]
    pub(crate) busy_code: Option<u8>,
    #[command(flatten)]
    pub(crate) reason: ReasonArg,
    /// Tell how it stands, and run nothing: exit 0 done, 1 open, 75 in progress
    #[arg(long, conflicts_with = "command")]
    pub(crate) status: bool,
    /// Forget that it is done, and run nothing: exit 1 if there was nothing to forget
    #[arg(long, conflicts_with_all = ["command", "status"])]
    pub(crate) forget: bool,
    /// The command and its arguments; no shell is involved
    #[arg(last = true, required_unless_present_any = ["status", "forget"], value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure elect scheduler -- ./scheduler            on every machine: one runs it, the others stand by
  tenure show scheduler                            who leads, who stands by

It waits for ever to lead. If the lead is lost, the command is ended before the lease is, and the candidate waits again.
If the command ends by itself, so does the candidate, with its exit code.")]
pub(crate) struct Elect {
    /// The election
    #[arg(value_parser = name)]
    pub(crate) name: LockName,
    #[command(flatten)]
    pub(crate) ttl: TtlArg,
    #[command(flatten)]
    pub(crate) grace: GraceArg,
    #[command(flatten)]
    pub(crate) reason: ReasonArg,
    /// The command and its arguments; no shell is involved
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Letters of flock(1) that mean nothing here. Known, so that they can be refused with what to do instead.
#[derive(Debug, Args)]
pub(crate) struct FlockLetters {
    #[arg(short = 'c', hide = true, value_name = "COMMAND")]
    c: Option<OsString>,
    #[arg(short = 'o', hide = true)]
    o: bool,
    #[arg(short = 'u', hide = true)]
    u: bool,
    #[arg(short = 'F', hide = true)]
    f: bool,
}

impl FlockLetters {
    /// The first of them that was used, and what to do instead.
    pub(crate) const fn used(&self) -> Option<(&'static str, &'static str)> {
        if self.c.is_some() {
            Some(("-c", "write: -- sh -c 'COMMAND'"))
        } else if self.o {
            Some(("-o", "leave it out: the command never inherits the lock"))
        } else if self.u {
            Some(("-u", "the lock is given back when the command ends; `tenure release` gives back a claim"))
        } else if self.f {
            Some(("-F", "leave it out: tenure stays beside the command to renew the lock"))
        } else {
            None
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnLost {
    /// TERM it in time, then KILL it before the lease ends
    Term,
    /// KILL it just before the lease ends
    Kill,
    /// Let it run on: another may then run beside it
    Ignore,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  claim=$(tenure acquire deploy --ttl 10m)          keep it to yourself: who has the claim may release the lock
  eval \"$(tenure acquire deploy --ttl 10m --export)\" sets TENURE_CLAIM and TENURE_TOKEN
  tenure renew; tenure check deploy; tenure release")]
pub(crate) struct Acquire {
    /// The lock
    #[arg(value_parser = name)]
    pub(crate) name: LockName,
    #[command(flatten)]
    pub(crate) ttl: TtlArg,
    #[command(flatten)]
    pub(crate) wait: WaitArgs,
    #[command(flatten)]
    pub(crate) mode: ModeArgs,
    /// Exit with this code, not 75, when the lock is busy
    #[arg(short = 'E', value_name = "CODE")]
    pub(crate) busy_code: Option<u8>,
    #[command(flatten)]
    pub(crate) reason: ReasonArg,
    /// Print lines for `eval`: export TENURE_CLAIM and TENURE_TOKEN
    #[arg(long, conflicts_with = "json")]
    pub(crate) export: bool,
}

/// Where a claim comes from. Never from an argument: those can be read by every user of the machine.
#[derive(Debug, Args)]
pub(crate) struct ClaimArgs {
    /// Read the claim from standard input: `-` is the only value; without this, from $TENURE_CLAIM
    #[arg(long, value_name = "-", conflicts_with = "claim_file")]
    pub(crate) claim: Option<String>,
    /// Read the claim from this file
    #[arg(long, value_name = "FILE")]
    pub(crate) claim_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Renew {
    /// The lock, to be sure: the claim says which
    #[arg(value_parser = name)]
    pub(crate) name: Option<LockName>,
    /// How long it lives from now on, at least: what is left is never shortened [default: as it was acquired]
    #[arg(long, value_name = "DUR", value_parser = ttl, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Ttl>,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Release {
    /// The lock, to be sure: the claim says which
    #[arg(value_parser = name)]
    pub(crate) name: Option<LockName>,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The lock
    #[arg(value_parser = name)]
    pub(crate) name: LockName,
    #[command(flatten)]
    pub(crate) claim: ClaimArgs,
}

#[derive(Debug, Args)]
pub(crate) struct Ls {
    /// Only names that start so
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,
    /// Only locks that somebody holds or waits for, without what was done once
    #[arg(long)]
    pub(crate) held: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The lock
    #[arg(value_parser = name)]
    pub(crate) name: LockName,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The lock; all of them if left out
    #[arg(value_parser = name)]
    pub(crate) name: Option<LockName>,
}

#[derive(Debug, Args)]
pub(crate) struct Evict {
    /// The lock
    #[arg(value_parser = name)]
    pub(crate) name: LockName,
    /// Pass it on at once, not when the holder's lease ends: two parties may then be at work at the same time
    #[arg(long)]
    pub(crate) force: bool,
    /// What the holder is told
    #[arg(long, value_name = "TEXT", value_parser = reason)]
    pub(crate) reason: Reason,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure --store redis://cache:6379 doctor
  tenure doctor --require exclusive || echo 'not for migrations'")]
pub(crate) struct Doctor {
    /// Exit 78 unless the store gives this
    #[arg(long, value_name = "LEVEL")]
    pub(crate) require: Vec<Level>,
}

/// What a deployment can be asked to give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Level {
    /// Never two at once, also when the store crashes or fails over
    Exclusive,
    /// Tokens that rise whatever the clocks do
    Fence,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure bench                                      the usual store
  tenure --store redis://cache:6379 bench --tasks 512")]
pub(crate) struct Bench {
    /// How many tasks at once take and give back a lock of their own
    #[arg(long, value_name = "N", default_value = "64", value_parser = parties)]
    pub(crate) tasks: usize,
    /// How many want the same lock and hand it over
    #[arg(long, value_name = "N", default_value = "16", value_parser = parties)]
    pub(crate) waiters: usize,
    /// How long each of the three measurements takes
    #[arg(long = "for", value_name = "DUR", default_value = "1s", value_parser = span)]
    pub(crate) span: Duration,
}

#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Which shell
    pub(crate) shell: clap_complete::Shell,
}

/// The first argument of a guardian.
pub(crate) const GUARDIAN: &str = "__guardian";

/// What the guardian must know before there is a grant. Never typed by people, so it is no command of [`Cli`].
#[derive(Debug, Parser)]
pub(crate) struct Guardian {
    /// The process group of the command; its own, in a session of its own, if left out.
    #[arg(long)]
    pub(crate) group: Option<i32>,
    #[arg(long)]
    pub(crate) on_lost: OnLost,
    #[arg(long)]
    pub(crate) grace_ms: u64,
    #[arg(long)]
    pub(crate) lead_ms: u64,
    /// The program as it was found, then the command as it was typed.
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }
}
