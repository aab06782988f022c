//! The suite: every rule of the boundary and every promise to users, as a case over a [`Subject`].
//!
//! The list below is the only one. [`all`] and [`conformance!`](crate::conformance!) are made from it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::{BoxFuture, Capabilities};

use crate::scene::within;
use crate::subject::Subject;

mod line;
mod names;
mod verbs;

/// A case takes no longer than this, or it hangs.
const CASE_TIME_MAX: Duration = Duration::from_secs(120);

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
        f.debug_struct("Case")
            .field("name", &self.name)
            .finish_non_exhaustive()
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
    let case = all()
        .iter()
        .find(|case| case.name == name)
        .expect("a case of this name");
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
