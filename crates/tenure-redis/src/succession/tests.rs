use std::cell::RefCell;

use futures_util::FutureExt;
use tenure_core::{BoxFuture, LockName, Released, StoreError};

use super::*;
use crate::keys::Layout;

const SINCE: BootInstant = BootInstant::from_nanos(1_000_000_000);
const TTL: Duration = Duration::from_secs(5);
const ROUND_TRIP: Duration = Duration::from_micros(100);

fn keys() -> Keys {
    Layout::new("tenure", false).keys(&LockName::new("a").unwrap())
}

fn id(i: u8) -> ClaimId {
    ClaimId::from_bytes([i; 16])
}

fn label() -> Label {
    Label::new("host/1/app").unwrap()
}

/// A lock that came here a round trip ago: `first` holds it with `token`, `next` are next in line; all below 100 are ours.
fn begun(succession: &Succession, first: u8, token: u64, next: &[u8]) -> Begun {
    let grant = Inheritance { token: FencingToken::new(token), since: SINCE, ttl: TTL };
    let ours = |other: ClaimId| other.as_bytes()[0] < 100;
    let next = next.iter().copied().map(id);
    let came = Came { first: id(first), grant, next, is_cut: Arc::default() };
    succession.begin(&keys(), came, |_| true, ours, SINCE + ROUND_TRIP)
}

/// Ends a claim; answers how, and who was told what.
fn end(
    succession: &Succession,
    i: u8,
    after: Duration,
    heard: impl Fn(ClaimId) -> Heard,
) -> (End, Vec<(ClaimId, u64)>) {
    let told = RefCell::new(Vec::new());
    let tell = |id, inheritance: Inheritance| {
        assert_eq!((inheritance.since, inheritance.ttl), (SINCE, TTL), "no longer than the first");
        told.borrow_mut().push((id, inheritance.token.get()));
        heard(id)
    };
    let how = succession.end(&keys(), id(i), true, SINCE + ROUND_TRIP + after, tell);
    (how, told.into_inner())
}

fn all_hear(_: ClaimId) -> Heard {
    Heard::Yes(label())
}

fn held(succession: &Succession, i: u8) -> Option<Vec<ClaimId>> {
    succession.report(&keys(), id(i)).map(|report| report.held)
}

#[test]
fn those_next_in_line_hold_in_turn_and_then_the_store_hears_of_all() {
    let succession = Succession::default();
    assert!(succession.is_idle());
    begun(&succession, 1, 70, &[2, 3, 4, 5, 200, 6]);
    assert!(!succession.is_idle());
    for (ends, next) in [(1, 2), (2, 3), (3, 4), (4, 5)] {
        let (how, told) = end(&succession, ends, Duration::ZERO, all_hear);
        assert!(matches!(how, End::HandedOn(_)), "{how:?}");
        assert_eq!(told, [(id(next), 69 + u64::from(next))]);
        assert!(succession.is_last(&keys(), id(next)));
    }
    // Asked again: it has ended, and nobody else is told.
    assert!(
        matches!(end(&succession, 2, Duration::ZERO, all_hear), (End::HandedOn(_), told) if told.is_empty())
    );
    // A stranger is next.
    let (how, told) = end(&succession, 5, Duration::ZERO, all_hear);
    assert!(matches!(how, End::Last(_)) && told.is_empty(), "{how:?} {told:?}");
    assert_eq!(held(&succession, 3), Some([1, 2, 3, 4, 5].map(id).to_vec()));
    assert_eq!(held(&succession, 9), None);
    succession.known(&keys(), id(5));
    assert!(succession.is_idle());
    assert_eq!(held(&succession, 5), None);
}

#[test]
fn what_the_store_has_heard_is_not_told_again_and_it_names_more() {
    let succession = Succession::default();
    begun(&succession, 1, 70, &[2, 3, 4, 5]);
    for ends in [1, 2, 3] {
        end(&succession, ends, Duration::ZERO, all_hear);
    }
    let since = SINCE + Duration::from_secs(1);
    // It had heard of the third when it answered; those that it names are known in part.
    let confirmed = Confirmed {
        since,
        ttl: TTL,
        next: numbered(90, [4, 5, 6, 200].map(id).into_iter()),
        is_cut: Arc::default(),
    };
    succession.heard(&keys(), id(3), confirmed, |other| other.as_bytes()[0] < 100, since + ROUND_TRIP);
    assert_eq!(held(&succession, 2), None, "it knows");
    assert_eq!(held(&succession, 4), Some([3, 4].map(id).to_vec()));
    let heirs: Vec<_> = succession.chains()[&keys()].heirs.iter().map(|h| (h.id, h.token.get())).collect();
    assert_eq!(heirs, [(id(5), 74), (id(6), 92)], "with tokens that rise");
}

#[test]
fn who_has_given_up_is_left_out_and_who_does_not_listen_ends_it() {
    let succession = Succession::default();
    begun(&succession, 1, 70, &[2, 3, 4, 5, 6]);
    // A waiter gives up: as the store knows it.
    assert!(matches!(end(&succession, 2, Duration::ZERO, all_hear).0, End::AsStored));
    let gone = |other| if other == id(3) { Heard::Gone } else { Heard::Yes(label()) };
    let (how, told) = end(&succession, 1, Duration::ZERO, gone);
    assert!(matches!(how, End::HandedOn(_)));
    assert_eq!(told, [(id(3), 72), (id(4), 73)]);
    // It is its turn, though: nobody behind it gets the lock.
    let (how, told) = end(&succession, 4, Duration::ZERO, |_| Heard::No);
    assert!(matches!(how, End::Last(_)));
    assert_eq!(told, [(id(5), 74)]);
}

#[test]
fn an_old_grant_and_a_brief_one_with_few_behind_it_are_not_handed_on() {
    let succession = Succession::default();
    begun(&succession, 1, 70, &[2, 3, 4, 5]);
    let (how, told) = end(&succession, 1, TTL / HANDED_ON_WITHIN, all_hear);
    assert!(matches!(how, End::AsStored) && told.is_empty(), "{how:?}");
    assert!(succession.is_idle(), "the rest is between the claim and the store");
    begun(&succession, 1, 70, &[2, 3, 4]);
    let (how, told) = end(&succession, 1, ROUND_TRIP / 2, all_hear);
    assert!(matches!(how, End::AsStored) && told.is_empty(), "{how:?}");
    // Then they are hardly asked for.
    let asked = (0..ASKED_EVERY).filter(|_| succession.asks_for(FEW - 1) > 0).count();
    assert_eq!((asked, succession.asks_for(FEW), succession.asks_for(1000)), (1, FEW + 1, HEIRS_MAX));
    begun(&succession, 1, 70, &[2]);
    let (how, told) = end(&succession, 1, ROUND_TRIP, all_hear);
    assert!(matches!(how, End::HandedOn(_)) && told.len() == 1, "{how:?}");
    assert_eq!((0..3).map(|_| succession.asks_for(1)).sum::<usize>(), 3 * 2, "one more than are ours");
    assert_eq!(succession.asks_for(0), 0);
}

/// Strangers have the lock while those that are through wait for the store's word.
#[test]
fn a_brief_grant_with_few_behind_it_is_handed_on_where_strangers_wait() {
    let succession = Succession::default();
    begun(&succession, 1, 70, &[2, 200]);
    let (how, told) = end(&succession, 1, ROUND_TRIP / 2, all_hear);
    assert!(matches!(how, End::HandedOn(_)) && told == [(id(2), 71)], "{how:?} {told:?}");
    // And one is asked again who is next.
    assert_eq!((0..3).map(|_| succession.asks_for(1)).sum::<usize>(), 3 * 2);
}

#[test]
fn a_claim_that_outlives_its_process_hands_nothing_on() {
    let succession = Succession::default();
    begun(&succession, 1, 70, &[2, 3, 4, 5]);
    let how = succession.end(&keys(), id(1), false, SINCE + TTL / 10, |_, _| panic!("nobody is told"));
    assert!(matches!(how, End::AsStored));
}

/// Answers are read by different tasks: news of an earlier grant may be late, when others have held since.
#[test]
fn old_news_is_of_no_consequence() {
    let succession = Succession::default();
    begun(&succession, 3, 80, &[4, 5, 6, 7]);
    end(&succession, 3, Duration::ZERO, all_hear);
    assert_eq!(begun(&succession, 2, 70, &[3, 4, 5, 6]), Begun::default());
    assert_eq!(held(&succession, 4), Some([3, 4].map(id).to_vec()), "the store must hear of them");
    // Newer news: the store gave the lock to another, so they have lost it.
    assert_eq!(begun(&succession, 8, 99, &[9, 10]), Begun { has_heirs: true, lost: Some(id(4)) });
    // And of one that is ending, the store hears itself.
    let succession = Succession::default();
    let grant = Inheritance { token: FencingToken::new(70), since: SINCE, ttl: TTL };
    let came = Came { first: id(1), grant, next: [id(2)].into_iter(), is_cut: Arc::default() };
    succession.begin(&keys(), came, |_| false, |_| true, SINCE);
    assert!(succession.is_idle());
}

#[test]
fn a_lock_that_was_lost_is_not_handed_on() {
    let succession = Succession::default();
    begun(&succession, 1, 70, &[2, 3, 4, 5]);
    let (how, _) = end(&succession, 1, Duration::ZERO, all_hear);
    let End::HandedOn(link) = how else { panic!("{how:?}") };
    // An operator took it away, or a renewal was refused.
    succession.stop(&keys(), id(2));
    let (how, told) = end(&succession, 2, Duration::ZERO, all_hear);
    assert!(matches!(how, End::Last(_)) && told.is_empty(), "{how:?}");
    assert_eq!(succession.lost(&keys(), &link), Some(id(2)));
    assert_eq!(link.verdict().unwrap(), Released::Absent);
    assert!(succession.is_idle());
}

/// The store has given the lock to a claim here in another way: it had forgotten what it said.
#[test]
fn what_the_store_said_before_it_gave_the_lock_anew_is_void() {
    let succession = Succession::default();
    begun(&succession, 1, 70, &[2, 3, 4, 5]);
    assert_eq!(succession.granted(&keys(), id(1), FencingToken::new(70)), None, "that is the same");
    assert_eq!(succession.granted(&keys(), id(9), FencingToken::new(60)), None, "old news");
    let (how, _) = end(&succession, 1, Duration::ZERO, all_hear);
    let End::HandedOn(link) = how else { panic!("{how:?}") };
    assert_eq!(succession.granted(&keys(), id(3), FencingToken::new(990)), Some(id(2)));
    assert!(succession.is_idle());
    assert_eq!(link.verdict().unwrap(), Released::Absent);
}

/// Over another connection it may be another store.
#[test]
fn nothing_is_handed_on_once_the_connection_has_ended() {
    let succession = Succession::default();
    let grant = Inheritance { token: FencingToken::new(70), since: SINCE, ttl: TTL };
    let is_cut: Arc<AtomicBool> = Arc::default();
    let came = Came { first: id(1), grant, next: [2, 3, 4, 5].map(id).into_iter(), is_cut: is_cut.clone() };
    succession.begin(&keys(), came, |_| true, |_| true, SINCE + ROUND_TRIP);
    is_cut.store(true, Ordering::Release);
    let (how, told) = end(&succession, 1, Duration::from_millis(1), all_hear);
    assert!(matches!(how, End::AsStored) && told.is_empty(), "{how:?}");
}

/// The last of them is being released. Whoever the store names meanwhile is the store's to serve.
#[test]
fn whoever_is_being_released_hands_nothing_on() {
    let succession = Succession::default();
    begun(&succession, 1, 70, &[2, 3]);
    end(&succession, 1, ROUND_TRIP, all_hear);
    end(&succession, 2, ROUND_TRIP, all_hear);
    let (how, _) = end(&succession, 3, ROUND_TRIP, all_hear);
    let End::Last(link) = how else { panic!("{how:?}") };
    let next = numbered(90, [4, 5, 6, 7].map(id).into_iter());
    let confirmed = Confirmed { since: SINCE, ttl: TTL, next, is_cut: Arc::default() };
    succession.heard(&keys(), id(3), confirmed, |_| true, SINCE + ROUND_TRIP);
    let (how, told) = end(&succession, 3, ROUND_TRIP, all_hear);
    assert!(matches!(how, End::Last(_)) && told.is_empty(), "{how:?} {told:?}");
    // If the release went unanswered, that may be why the store knows none of them.
    assert!(!link.is_asked());
    succession.lost(&keys(), &link);
    assert!(matches!(link.verdict(), Err(StoreError::Unknown(_))));
    link.is_answered();
    assert_eq!(link.verdict().unwrap(), Released::Absent);
}

/// The last of them is being released, others held since, and the lock has come here again before that release's answer was
/// read. Nobody has lost anything.
#[test]
fn a_lock_that_comes_back_before_the_answer_was_read_was_not_lost() {
    let in_trouble = |is_told: bool| {
        let succession = Succession::default();
        begun(&succession, 1, 70, &[2, 200]);
        end(&succession, 1, ROUND_TRIP, all_hear);
        let (how, _) = end(&succession, 2, ROUND_TRIP, all_hear);
        let End::Last(link) = how else { panic!("{how:?}") };
        assert!(!link.is_asked());
        if is_told {
            assert_eq!(begun(&succession, 3, 99, &[4]), Begun { has_heirs: true, lost: None });
        } else {
            assert_eq!(succession.granted(&keys(), id(3), FencingToken::new(99)), None);
        }
        assert!(succession.settled(&keys(), id(1), &link).is_none(), "the answer tells");
        (succession, link)
    };
    for is_told in [false, true] {
        let (succession, link) = in_trouble(is_told);
        succession.known(&keys(), id(2));
        link.is_answered();
        let settled = succession.settled(&keys(), id(1), &link);
        assert_eq!(settled.expect("it is answered").unwrap(), Released::Held);
        // It had been lost before.
        let (succession, link) = in_trouble(is_told);
        assert_eq!(succession.lost(&keys(), &link), None);
        link.is_answered();
        assert_eq!(link.verdict().unwrap(), Released::Absent);
        // And if no answer comes, nobody knows, also if it is asked again.
        let (_, link) = in_trouble(is_told);
        assert!(matches!(link.verdict(), Err(StoreError::Unknown(_))));
        assert!(link.is_asked());
    }
}

/// A request goes on if its caller does not look, and if it is dropped.
#[tokio::test]
async fn a_caller_that_does_not_look_holds_nobody_up() {
    let link = Arc::new(Link::default());
    let request = || {
        Box::pin(async {
            tokio::task::yield_now().await;
            Ok(1)
        }) as BoxFuture<'static, _>
    };
    let mut idle = Box::pin(link.in_turn(|| None, request));
    let mut waits = Box::pin(link.in_turn(|| None, request));
    assert!((&mut idle).now_or_never().is_none() && (&mut waits).now_or_never().is_none());
    assert_eq!(link.in_turn(|| None, request).await.unwrap(), 1);
    assert_eq!(link.in_turn(|| None, request).await.unwrap(), 1, "nor does one that waits and does not look");
    drop(waits);
    assert_eq!(idle.await.unwrap(), 1);
    let settled = link.in_turn(|| Some(Ok(2)), || panic!("nobody need ask"));
    assert_eq!(settled.await.unwrap(), 2);
}

#[tokio::test]
async fn a_silent_store_is_asked_once_for_all_that_wait() {
    let (link, asked) = (Arc::new(Link::default()), Arc::new(AtomicU32::new(0)));
    let (silence, mut silent) = tokio::sync::watch::channel(());
    silent.mark_unchanged();
    let ask = || {
        let (link, asked, mut silent) = (link.clone(), asked.clone(), silent.clone());
        let request = move || {
            Box::pin(async move {
                asked.fetch_add(1, Ordering::SeqCst);
                silent.changed().await.expect("it ends");
                Err::<(), _>(StoreError::unknown("silence"))
            }) as BoxFuture<'static, _>
        };
        async move { link.in_turn(|| None, request).await }
    };
    let mut first = Box::pin(ask());
    assert!((&mut first).now_or_never().is_none());
    let mut others: Vec<_> = (0..20).map(|_| Box::pin(ask())).collect();
    for other in &mut others {
        assert!(other.now_or_never().is_none());
    }
    silence.send_replace(());
    assert!(first.await.is_err());
    for other in others {
        assert!(other.await.is_err());
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2, "one that was under way, one for all the others");
    assert!(link.in_turn(|| None, || Box::pin(async { Ok(()) })).await.is_ok(), "later, anybody asks again");
}

#[test]
fn locks_that_nobody_ended_are_forgotten() {
    let succession = Succession::default();
    let layout = Layout::new("tenure", false);
    for i in 0..3 * SWEPT_FROM {
        let keys = layout.keys(&LockName::new(format!("{i}")).unwrap());
        let since = SINCE + Duration::from_millis(10) * u32::try_from(i).unwrap();
        let grant = Inheritance { token: FencingToken::new(1), since, ttl: TTL };
        let came = Came { first: id(1), grant, next: [id(2)].into_iter(), is_cut: Arc::default() };
        succession.begin(&keys, came, |_| true, |_| true, since);
    }
    assert!(succession.chains().len() <= SWEPT_FROM, "{}", succession.chains().len());
}
