//! The suite: every rule of the boundary and every promise to users, as a case over a [`Subject`].
//!
//! The list below is the only one. [`all`] and [`conformance!`](crate::conformance!) are made from it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{BoxFuture, Capabilities, Fence};

use crate::scene::within;
use crate::subject::Subject;

mod cancel;
mod detach;
mod evict;
mod exclusion;
mod faults;
mod life;
mod line;
mod loss;
mod names;
mod observe;
mod once;
mod verbs;
mod waiting;

/// A case takes no longer than this, or it hangs.
const CASE_TIME_MAX: Duration = Duration::from_secs(60);

/// One test of the suite.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Case {
    /// The sentence it proves.
    pub name: &'static str,
    /// Whether a store with these capabilities must pass it.
    pub needs: fn(&Capabilities) -> bool,
    /// Proves it, or panics.
    pub run: fn(Arc<dyn Subject>) -> BoxFuture<'static, ()>,
}

impl fmt::Debug for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Case").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Hands the list of cases to another macro, after its own arguments: where each is, and what it needs.
#[doc(hidden)]
#[macro_export]
macro_rules! __for_each_case {
    (($($then:tt)*) $($arguments:tt)*) => {
        $($then)* {
            $($arguments)*
            verbs::verbs_are_idempotent: |_| true;
            verbs::late_duplicates_do_nothing: |_| true;
            verbs::only_the_exact_claim_releases: |_| true;
            verbs::claims_of_one_client_exclude_each_other: |_| true;
            verbs::a_lost_claim_is_never_renewed_back: |_| true;
            verbs::renewing_never_shortens: |_| true;
            verbs::renewals_are_answered_in_order: |_| true;
            verbs::a_grant_is_dated_before_its_request: |_| true;
            verbs::another_shape_is_refused: |_| true;
            names::names_are_told_apart_byte_for_byte: |_| true;
            line::the_line_is_served_in_order: |offers| offers.fifo;
            line::a_lock_found_free_goes_to_the_head: |offers| offers.fifo;
            line::readers_do_not_pass_a_writer: |offers| offers.fifo && offers.shared;
            line::try_acquire_never_joins_the_line: |_| true;
            line::a_vanished_waiter_holds_nobody_up: |offers| offers.fifo;
            line::a_leaving_waiter_lets_the_line_move: |offers| offers.fifo && offers.shared;
            line::a_release_wakes_the_next: |_| true;
            line::a_living_waiter_keeps_its_place: |offers| offers.fifo;
            waiting::trying_never_waits: |_| true;
            waiting::a_bounded_wait_times_out: |_| true;
            waiting::waiting_for_ever_outlasts_the_holder: |_| true;
            waiting::one_last_attempt_is_made_at_the_deadline: |_| true;
            cancel::cancelled_acquire_leaves_no_claim: |_| true;
            cancel::cancelled_at_any_moment_leaves_no_claim: |_| true;
            cancel::a_dropped_guard_releases: |_| true;
            exclusion::exclusion_holds_under_contention: |_| true;
            exclusion::exclusion_holds_under_faults: |_| true;
            exclusion::readers_share_and_writers_do_not: |offers| offers.shared;
            exclusion::permits_are_never_exceeded: |offers| offers.permits;
            life::a_lease_is_renewed_past_many_ttls: |_| true;
            life::an_expired_grant_passes_on: |_| true;
            life::a_vanished_holder_is_succeeded: |_| true;
            life::a_claim_without_tie_outlives_its_client: |offers| offers.detach;
            life::tokens_rise_whatever_ended_the_last: |offers| offers.fence > Fence::None;
            life::a_closed_client_leaves_nothing: |_| true;
            loss::loss_is_told_when_the_store_falls_silent: |_| true;
            loss::loss_is_told_when_the_runtime_is_blocked: |_| true;
            loss::a_lost_lease_never_comes_back: |_| true;
            loss::a_short_silence_loses_nothing: |_| true;
            loss::run_stops_the_work_at_loss: |_| true;
            faults::unknown_is_neither_busy_nor_granted: |_| true;
            faults::an_unanswered_grant_is_given_back: |_| true;
            faults::missing_capabilities_are_refused_without_io: |_| true;
            faults::a_refusal_changes_nothing: |_| true;
            once::settling_after_loss_is_refused: |offers| offers.once;
            once::a_repeated_settle_is_recorded_once: |offers| offers.once;
            once::settling_wakes_all_waiters: |offers| offers.once;
            once::a_forgotten_result_is_run_again: |offers| offers.once;
            once::once_runs_once_for_everybody: |offers| offers.once;
            once::an_unanswered_settle_is_never_claimed: |offers| offers.once;
            observe::inspect_tells_the_truth: |_| true;
            observe::listing_pages_through_every_lock: |_| true;
            evict::an_evicted_claim_cannot_renew: |_| true;
            evict::what_was_said_first_stays_said: |_| true;
            evict::eviction_passes_the_lock_on: |_| true;
            evict::eviction_by_token_spares_the_others: |offers| offers.shared;
            evict::an_evicted_holder_is_told: |_| true;
            detach::a_detached_claim_is_adopted_once: |offers| offers.detach;
            detach::a_detached_claim_travels: |offers| offers.detach;
            detach::a_detached_claim_ends_with_its_ttl: |offers| offers.detach;
        }
    };
}

macro_rules! list {
    ($($module:ident :: $name:ident : $needs:expr;)*) => {
        &[$(Case { name: stringify!($name), needs: $needs, run: |subject| Box::pin($module::$name(subject)) }),*]
    };
}

/// Every case there is.
pub fn all() -> &'static [Case] {
    const ALL: &[Case] = __for_each_case!((list!));
    ALL
}

/// Makes one `#[test]` of every case. The argument is an expression that makes a fresh [`Subject`] each time it is
/// evaluated; it may await.
#[macro_export]
macro_rules! conformance {
    ($subject:expr) => {
        $crate::__for_each_case! { ($crate::__tests!) ($subject) }
    };
}

/// One `#[test]` per case.
#[doc(hidden)]
#[macro_export]
macro_rules! __tests {
    (($subject:expr) $($module:ident :: $name:ident : $needs:expr;)*) => {
        $(#[test]
        fn $name() {
            $crate::conformance::run(stringify!($name), async || {
                ::std::sync::Arc::new($subject) as ::std::sync::Arc<dyn $crate::Subject>
            });
        })*
    };
}

/// Runs one case on a runtime of its own, unless the store does not offer what it needs: then it says so.
///
/// # Panics
/// If the case fails, hangs, or does not exist.
pub fn run(name: &str, make: impl AsyncFnOnce() -> Arc<dyn Subject>) {
    let case = all().iter().find(|case| case.name == name).expect("a case of this name");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("the process may start two more threads");
    runtime.block_on(async {
        let subject = make().await;
        let client = subject.open().await;
        if !(case.needs)(&client.capabilities()) {
            eprintln!("skipped: {name}: {} does not offer what it needs", client.store());
            return;
        }
        drop(client);
        within(CASE_TIME_MAX, name, (case.run)(subject)).await;
    });
    runtime.shutdown_background();
}
