//! Deliberately broken backends: the proof that the suite can fail.
//!
//! Each has one bug that real lock systems had or have, and names the one case that must kill it. All of them are the
//! reference backend with the bug put in front (`backend.rs`); everything else about them is right.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use tenure_core::clock::SystemClock;
use tenure_core::queue::Rules;
use tenure_core::{Backend, Memory};

use crate::conformance;
use crate::subject::{MemorySubject, Subject};
use backend::{Bad, CutOff, Lore};

mod backend;

/// A broken backend, and what must find it out.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct KnownBad {
    /// What is wrong with it.
    pub bug: Bug,
    /// Who had it, or what it does to them.
    pub story: &'static str,
    /// The name of the one case that must fail.
    pub killed_by: &'static str,
}

macro_rules! known_bad {
    ($($bug:ident, $killed_by:ident, $story:literal;)*) => {
        /// What is wrong with a backend.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Bug {
            $(#[doc = $story] $bug,)*
        }

        const ALL: &[KnownBad] = &[
            $(KnownBad { bug: Bug::$bug, story: $story, killed_by: stringify!($killed_by) },)*
        ];
    };
}

known_bad! {
    RenewResurrects, a_lost_claim_is_never_renewed_back, "redis-semaphore 175: an extend re-creates what has expired";
    ReleaseIgnoresTheClaim, only_the_exact_claim_releases, "etcd 22082: a stale unlock deletes the newer grant";
    IdentityIsTheClient, claims_of_one_client_exclude_each_other, "distributed-lock: two tasks of a client both hold";
    TokenRestartsAfterExpiry, tokens_rise_whatever_ended_the_last, "the counter expires together with the lock";
    TokenIsPerClient, tokens_rise_whatever_ended_the_last, "each client counts its own grants";
    MineAlreadyGetsANewToken, verbs_are_idempotent, "a repeated request leaves two tokens for one grant";
    FailureReadsAsBusy, unknown_is_neither_busy_nor_granted, "rslock: every error reads 'resource is unavailable'";
    FailureReadsAsGranted, unknown_is_neither_busy_nor_granted, "redis-py 2023: the answer was somebody else's";
    NewcomersBarge, the_line_is_served_in_order, "whoever polls first gets it";
    ReadersPassAWriter, readers_do_not_pass_a_writer, "a stream of readers starves the writer";
    TryingJoinsTheLine, try_acquire_never_joins_the_line, "a try leaves a waiter behind";
    LeavingStaysInLine, cancelled_acquire_leaves_no_claim, "a cancelled acquire keeps its place, and is granted later";
    LeavingIsNoticedLater, a_leaving_waiter_lets_the_line_move, "a reader waits for a writer that went away";
    DeadWaitersStay, a_vanished_waiter_holds_nobody_up, "Redisson: dead waiters hold up the living";
    WakeUpsAreLost, a_release_wakes_the_next, "Redisson 5761: asleep until the ttl ends";
    TtlCountsFromTheReply, a_grant_is_dated_before_its_request, "a slow answer makes the grant longer than the store's";
    PushIsDatedByItsReading, a_grant_is_dated_before_its_request, "a waiter that was paused believes an old push";
    FoldsCase, names_are_told_apart_byte_for_byte, "a collation makes two locks one";
    CutsAtABrace, names_are_told_apart_byte_for_byte, "only the hash tag counts";
    CutsAtSixtyFourBytes, names_are_told_apart_byte_for_byte, "MySQL `GET_LOCK` names";
    MixesShapes, another_shape_is_refused, "a mutex and a semaphore of one name do not see each other";
    SettlesAfterLoss, settling_after_loss_is_refused, "who lost the lock still records its result";
    RepeatedSettleIsRefused, a_repeated_settle_is_recorded_once, "a lost answer makes a settled run unsettled";
    SettlingWakesOne, settling_wakes_all_waiters, "the others sleep though it is done";
    ForgettingDropsClaims, a_forgotten_result_is_run_again, "to forget a result takes the lock away";
    OnePermitTooMany, permits_are_never_exceeded, "less than or equal";
    TwoHoldersNowAndThen, exclusion_holds_under_contention, "redlock-rb 137: read, then write";
    DeadHoldersStay, a_vanished_holder_is_succeeded, "Redisson 7272: renewed by nobody, for ever";
    RenewalsAreOnlyAnswered, a_lease_is_renewed_past_many_ttls, "node-redlock: dead after the second period";
    RenewalsAreAnsweredInAnyOrder, renewals_are_answered_in_order, "the wrong lease is lost";
    TombstonesAreIgnored, late_duplicates_do_nothing, "ZOOKEEPER-1262: the late request takes the lock after all";
    EvictedMayRenew, an_evicted_claim_cannot_renew, "the operator's eviction lasts until the next renewal";
    EvictionIsAlwaysForced, eviction_passes_the_lock_on, "passed on while the holder is at work";
    AdoptedByAnybody, a_detached_claim_is_adopted_once, "two processes were given the text, and both hold";
    InspectLies, inspect_tells_the_truth, "rslock: a held lock reads as free";
    ListingStopsEarly, listing_pages_through_every_lock, "the first page, and no more";
}

/// Every broken backend there is.
pub fn all() -> &'static [KnownBad] {
    ALL
}

impl KnownBad {
    /// A store of this kind.
    pub fn subject(&self) -> Arc<dyn Subject> {
        let mut rules = MemorySubject::RULES;
        if self.bug == Bug::DeadWaitersStay {
            (rules.line_ttl, rules.first_ttl) = (Duration::from_secs(3600), Duration::from_secs(3600));
        }
        Arc::new(BadSubject {
            bug: self.bug,
            memory: Memory::with(Arc::new(SystemClock), rules),
            lore: Arc::default(),
        })
    }
}

/// What the case says to a store: `Ok` if it passes, and otherwise what it complains of. A case that is not done within
/// `limit` has failed; its thread is left behind.
///
/// # Errors
/// The complaint.
pub fn verdict(
    case: &'static str,
    make: impl FnOnce() -> Arc<dyn Subject> + Send + 'static,
    limit: Duration,
) -> Result<(), String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let outcome = catch_unwind(AssertUnwindSafe(|| conformance::run(case, async || make())));
        // Nobody listens after the limit.
        let _ = sender.send(outcome.map_err(|panic| said(&*panic)));
    });
    receiver.recv_timeout(limit).unwrap_or_else(|_| Err(format!("hangs for more than {limit:?}")))
}

fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("something").to_owned()
}

#[derive(Debug)]
struct BadSubject {
    bug: Bug,
    memory: Memory,
    lore: Arc<Lore>,
}

#[async_trait]
impl Subject for BadSubject {
    async fn open(&self) -> Arc<dyn Backend> {
        Arc::new(Bad::new(self.bug, self.memory.clone(), self.lore.clone()))
    }

    async fn open_cut_off(&self) -> Arc<dyn Backend> {
        Arc::new(CutOff { bug: self.bug, inner: MemorySubject::new().open_cut_off().await })
    }

    async fn leftovers(&self) -> Vec<String> {
        self.memory.stored_names().iter().map(|name| format!("{name:?}")).collect()
    }
}

/// What the broken ones say of themselves: like the good one.
const RULES: Rules = MemorySubject::RULES;
