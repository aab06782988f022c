//! The verbs by themselves: idempotent, exact, and deaf to what comes late.

use std::sync::Arc;

use tenure_core::{Line, Mode, Released, Renewal, Trail};

use crate::scene::{busy, exclusive, granted, inspect, nothing_is_left, renew};
use crate::subject::Subject;

/// A request may be repeated: the second does nothing, and answers what the first did.
pub(super) async fn verbs_are_idempotent(subject: Arc<dyn Subject>) {
    let (a, b) = (subject.open().await, subject.open().await);
    let (first, second) = (exclusive("twice"), exclusive("twice"));

    let token = granted(a.attempt(&first, Line::Join).await).token;
    for line in [Line::Join, Line::Pass] {
        let again = granted(a.attempt(&first, line).await);
        assert_eq!(again.token, token, "mine already is answered with the same token");
    }
    for _ in 0..2 {
        assert!(matches!(renew(&*a, &first).await, Renewal::Renewed { .. }));
    }
    if b.capabilities().fifo {
        for _ in 0..2 {
            assert_eq!(
                busy(b.attempt(&second, Line::Join).await).ahead,
                Some(0),
                "one place in line"
            );
        }
        let state = inspect(&*a, "twice").await;
        assert_eq!((state.holders.len(), state.waiters.len()), (1, 1), "{state:?}");
    }
    assert_eq!(a.release(&first, Trail::Clean).await, Ok(Released::Held));
    assert_eq!(a.release(&first, Trail::Clean).await, Ok(Released::Absent));
    let next = granted(b.attempt(&second, Line::Join).await).token;
    assert!(next > token);
    assert_eq!(
        a.release(&first, Trail::Clean).await,
        Ok(Released::Absent),
        "again, against a newer holder"
    );
    assert_eq!(granted(b.attempt(&second, Line::Join).await).token, next);
    assert_eq!(second.mode, Mode::Exclusive);
    assert_eq!(b.release(&second, Trail::Clean).await, Ok(Released::Held));
    nothing_is_left(&*subject).await;
}
