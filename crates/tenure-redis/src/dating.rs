//! When a grant that came as a push was made, by our own clock.
//!
//! A push is dated, not trusted: it may have lain in the socket while this process was stopped. What is known is one
//! exchange, the newest attempt of the claim that was answered: sent at a moment `s` here, answered at the store's
//! moment `T`. The push says that the grant was made at the store's moment `G`. Since `T` came after `s`, the grant
//! came no earlier than `G − T` after `s`; a little less, for clocks run at different speeds.

use std::sync::Arc;
use std::time::Duration;

use tenure_core::BootInstant;

/// How old an anchor may be: beyond that, two clocks' speeds say too little.
const ANCHOR_AGE_MAX: Duration = Duration::from_secs(10);

/// An answered exchange: what ties the store's clock to ours.
#[derive(Debug, Clone)]
pub(crate) struct Anchor {
    /// When the request was sent, by our clock.
    pub(crate) sent: BootInstant,
    /// When it was answered, by the store's clock in microseconds.
    pub(crate) store_micros: u64,
    /// The run of the server that answered.
    pub(crate) run_id: Arc<str>,
}

/// The moment on our clock that a grant, made at `granted_micros` by the server's run `run_id` and read at `read_at`,
/// surely did not precede. `None` if nothing can be said: attempt again then.
pub(crate) fn since(
    anchor: &Anchor,
    granted_micros: u64,
    run_id: &str,
    read_at: BootInstant,
) -> Option<BootInstant> {
    if run_id.is_empty() || *anchor.run_id != *run_id {
        return None;
    }
    let elapsed = read_at.saturating_since(anchor.sent);
    let later = Duration::from_micros(granted_micros.checked_sub(anchor.store_micros)?);
    if elapsed > ANCHOR_AGE_MAX || later > elapsed {
        return None;
    }
    Some((anchor.sent + (later - later / 1000)).min(read_at))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT: BootInstant = BootInstant::from_nanos(1_000_000_000_000);
    const T: u64 = 1_790_000_000_000_000;

    fn anchor() -> Anchor {
        Anchor { sent: SENT, store_micros: T, run_id: "r1".into() }
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// A waiter was stopped for 6 s while its grant, made 1 s after its attempt, lay in the socket. Dated at reading
    /// it would be believed for its whole ttl, though the store has long given the lock to another.
    #[test]
    fn a_grant_that_lay_in_the_socket_is_as_old_as_it_is() {
        let read_at = SENT + ms(7000);
        let since = since(&anchor(), T + 1_000_000, "r1", read_at).unwrap();
        assert_eq!(since, SENT + ms(999));
        assert!(since + ms(5000) < read_at, "a grant of 5 s is over");
    }

    #[test]
    fn a_fresh_grant_is_dated_no_later_than_its_reading() {
        let read_at = SENT + ms(300);
        assert_eq!(since(&anchor(), T, "r1", read_at), Some(SENT));
        let dated = since(&anchor(), T + 299_000, "r1", read_at).unwrap();
        assert!(dated < read_at && dated > SENT + ms(298));
    }

    #[test]
    fn nothing_is_said_without_a_sound_anchor() {
        let read_at = SENT + ms(5000);
        assert_eq!(since(&anchor(), T + 1, "r2", read_at), None, "another run of the server");
        let unknown = Anchor { run_id: "".into(), ..anchor() };
        assert_eq!(since(&unknown, T + 1, "", read_at), None, "nobody knows which run");
        assert_eq!(since(&anchor(), T - 1, "r1", read_at), None, "granted before we asked");
        assert_eq!(
            since(&anchor(), T + 5_001_000, "r1", read_at),
            None,
            "the store's clock ran ahead of ours"
        );
        assert_eq!(since(&anchor(), T + 1, "r1", SENT + ms(10_001)), None, "too old");
    }
}
