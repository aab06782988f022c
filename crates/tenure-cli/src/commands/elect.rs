//! `tenure elect`: a command that runs while this machine leads, again and again.
//!
//! Leading is holding the lock. A lost lead ends the command, not the candidate; the command's own end ends both.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tenure::clock::{Clock, SystemClock, sleep_until};
use tenure::{Election, Error, Leadership, Reason};

use super::{End, GIVE_BACK_WITHIN, Waited, block_on, told, wait_for};
use crate::child_env;
use crate::cli::{Elect, Global, LogFormat, OnLost};
use crate::failure::{Outcome, internal};
use crate::job::{Job, Over};
use crate::output::{clean, note};
use crate::signals::{Blocked, Events, FORWARDED, STOPPING};
use crate::store::Store;
use crate::wrapper::Wrapper;

/// How long a candidate that has led before pauses when the store refuses to serve.
const CAMPAIGN_AGAIN_AFTER: Duration = Duration::from_secs(1);

pub(crate) fn run(global: &Global, args: &Elect) -> Outcome<u8> {
    let job = Job::new(&args.name, &args.ttl, OnLost::Term, args.grace.grace, &args.command)?;
    let signals = Blocked::new(FORWARDED.into_iter().chain(STOPPING));
    let signals = signals.map_err(internal("take over signals"))?;
    block_on(async {
        let events = signals.events().map_err(internal("read signals"))?;
        let store = Store::open(global).await?;
        child_env::refuse_nested(&store, &args.name).await?;
        let (reason, format) = (args.reason.reason.as_ref(), global.log_format);
        let candidate = Candidate { job: &job, store: &store, events: &events, reason, format };
        let end = candidate.stand().await;
        store.close(GIVE_BACK_WITHIN).await;
        Ok(end?.code())
    })
}

struct Candidate<'a> {
    job: &'a Job<'a>,
    store: &'a Store,
    events: &'a Events,
    reason: Option<&'a Reason>,
    format: LogFormat,
}

impl Candidate<'_> {
    /// Campaigns and leads, until the command ends by itself or a signal ends it.
    async fn stand(&self) -> Outcome<End> {
        let mut election = self.store.locks.election(self.job.name).ttl(self.job.ttl);
        if let Some(reason) = self.reason {
            election = election.reason(reason.as_str());
        }
        let mut has_led = false;
        loop {
            // One guardian for each time: it goes with the command it watched.
            let wrapper = Wrapper::start(self.job, self.store, None);
            let mut wrapper = wrapper.map_err(internal("start the guardian"))?;
            let campaign = self.campaign(&election, has_led);
            let leadership = match wait_for(self.store, campaign, self.job.name, None, self.events).await {
                Waited::Came(leadership) => leadership.map_err(told(self.store))?,
                Waited::Interrupted(end) => return Ok(end),
            };
            if let Some(end) = self.lead(leadership, &mut wrapper).await? {
                return Ok(end);
            }
            has_led = true;
        }
    }

    /// Waits to become the leader. Who has led before does not give up because the store is away: that may be why the
    /// lead was lost.
    async fn campaign(&self, election: &Election, has_led: bool) -> tenure::Result<Leadership> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        loop {
            match election.campaign().await {
                Err(error @ Error::Unavailable { .. }) if has_led => {
                    tracing::info!(%error, "cannot campaign, trying again");
                    sleep_until(clock.clone(), clock.now() + CAMPAIGN_AGAIN_AFTER).await;
                }
                answer => return answer,
            }
        }
    }

    /// Runs the command; answers how the program ends, or nothing if only the lead has.
    async fn lead(&self, leadership: Leadership, wrapper: &mut Wrapper) -> Outcome<Option<End>> {
        let lease = (*leadership).clone();
        self.tell("leading", &format!("leads {:?} with token {}", self.job.name, lease.token()), &lease);
        let ended = wrapper.watch(&lease, self.events).await;
        let (over, valid_until) = (self.job.judge(self.store, &lease, ended), lease.valid_until());
        let resigned = leadership.resign().await;
        let (over, name) = (over?, self.job.name);
        let is_own_end = matches!(over, Over::Covered(_));
        let how = match self.job.judge_release(over, resigned, valid_until) {
            Over::Covered(how) => {
                self.tell("not leading", &format!("leads {name:?} no longer"), &lease);
                how
            }
            Over::Lost { how, failure } => {
                self.tell("not leading", &format!("leads {name:?} no longer: {}", failure.what()), &lease);
                if !is_own_end && !wrapper.is_told_to_end() {
                    return Ok(None);
                }
                how
            }
        };
        Ok(Some(End::of(how, wrapper.is_interrupted())))
    }

    /// One line on stderr, for people and for the log of a service.
    fn tell(&self, event: &str, what: &str, lease: &tenure::Lease) {
        let line = match self.format {
            LogFormat::Text => clean(&format!("tenure: {what}")),
            LogFormat::Json => json!({
                "level": "INFO",
                "message": what,
                "event": event,
                "lock": lease.name().as_str(),
                "token": lease.token(),
            })
            .to_string(),
        };
        let _ = note(&line);
    }
}
