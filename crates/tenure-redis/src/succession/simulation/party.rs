//! What a party does, and its process for it: as `handing_on.rs` and `backend.rs`.

use super::*;

/// What the store answers to a release.
#[derive(Debug, Clone)]
struct ReleaseAnswer {
    released: Released,
    /// The lock has come to a claim of the process that asks: what it would be pushed, and who is next in line.
    told: Option<(Vec<u8>, Vec<ClaimId>)>,
}

impl Here {
    pub(super) fn receive(&self, message: &[u8], may_be_late: bool) {
        if let Some(orphan) = self.process().pushes.receive(message, self.world.now()) {
            let (here, orphan) = (self.clone(), Orphan { may_be_late, ..orphan });
            tokio::spawn(async move {
                here.process().succession.stop(&here.world.keys, orphan.id);
                let trail = if may_be_late { Trail::Clean } else { Trail::Doubtful };
                let _ = here.release(orphan.id, trail).await;
            });
        }
    }

    /// `Inner::release` and `Requests::hand_out`.
    async fn release(&self, id: ClaimId, trail: Trail) -> Answer<Released> {
        let process = self.process();
        let standing = process.standing.load(Ordering::Relaxed).saturating_sub(1);
        let wants = if trail == Trail::Clean { process.succession.asks_for(standing) } else { 0 };
        let which = self.which;
        let answer =
            self.ask(move |world, queue, now| release_of(world, queue, now, which, id, trail, wants)).await;
        let (ReleaseAnswer { released, told }, Anchor { sent, .. }) = answer?;
        self.told(told, sent);
        Ok(released)
    }

    /// `Inner::came_here`.
    fn told(&self, told: Option<(Vec<u8>, Vec<ClaimId>)>, sent: BootInstant) {
        let Some((push, next)) = told else { return };
        let (process, now) = (self.process(), self.world.now());
        let (id, grant) = grant_in(&push, sent).expect("a grant");
        let grant = Inheritance { token: grant.token, since: sent, ttl: grant.ttl };
        let came = Came { first: id, grant, next: next.iter().copied(), is_cut: Arc::default() };
        let (awaits, ours) = (|id| process.pushes.awaits(id), |id| process.pushes.may_inherit(id));
        let mut has_heirs = false;
        if !next.is_empty() || !process.succession.is_idle() {
            let begun = process.succession.begin(&self.world.keys, came, awaits, ours, now);
            if let Some(lost) = begun.lost {
                process.pushes.tell(lost, News::Lost);
            }
            has_heirs = begun.has_heirs;
        }
        if has_heirs {
            process.pushes.receive(&push, now);
        } else {
            self.receive(&push, true);
        }
    }

    /// `Inner::end`.
    async fn end(&self, claim: &Claim, trail: Trail) -> Answer<Released> {
        let (process, keys, id) = (self.process(), &self.world.keys, claim.id);
        process.pushes.end(id);
        let tell = |id, inheritance| process.pushes.inherit(id, inheritance);
        match process.succession.end(keys, id, trail == Trail::Clean, self.world.now(), tell) {
            End::AsStored => self.release(id, trail).await,
            End::HandedOn(link) => {
                tokio::task::yield_now().await;
                let released = self.tell(id, &link).await?;
                if trail == Trail::Doubtful {
                    self.release(id, trail).await?;
                }
                Ok(released)
            }
            End::Last(link) => {
                let here = self.clone();
                CarriedThrough::new(async move {
                    let shared = link.clone();
                    let end = || Box::pin(async move { here.end_last(id, trail, &shared).await }) as _;
                    link.in_turn(|| None, end).await
                })
                .await
            }
        }
    }

    /// `Inner::end_last`: both in one write.
    async fn end_last(&self, id: ClaimId, trail: Trail, link: &Arc<Link>) -> Answer<Released> {
        let (process, keys, which) = (self.process(), &self.world.keys, self.which);
        let Some(Report { held, last, label }) = process.succession.report(keys, id) else {
            self.tell_in_turn(id, link).await?;
            process.succession.known(keys, id);
            return self.release(id, trail).await;
        };
        let was_doubtful = link.is_asked();
        let both = self.ask(move |world, queue, now| {
            let Step { answer, mut notices } = queue.hand_on(now, &RULES, &held, (last.token, &label));
            let (released, others) = release_of(world, queue, now, which, id, trail, 0);
            notices.extend(others);
            ((answer.is_some(), released), notices)
        });
        let ((is_ours, answer), Anchor { sent, .. }) = both.await?;
        if !was_doubtful {
            link.is_answered();
        }
        if is_ours {
            process.succession.known(keys, id);
        } else {
            process.succession.lost(keys, link);
        }
        self.told(answer.told, sent);
        Ok(answer.released)
    }

    async fn tell(&self, id: ClaimId, link: &Arc<Link>) -> Answer<Released> {
        let settled = || self.process().succession.settled(&self.world.keys, id, link);
        let request = || {
            let (here, link) = (self.clone(), link.clone());
            Box::pin(async move { here.tell_in_turn(id, &link).await }) as _
        };
        link.in_turn(settled, request).await
    }

    /// `Inner::tell_in_turn`.
    async fn tell_in_turn(&self, id: ClaimId, link: &Arc<Link>) -> Answer<Released> {
        let (process, keys) = (self.process(), &self.world.keys);
        let Some(Report { held, last, label }) = process.succession.report(keys, id) else {
            return link.verdict();
        };
        let wants = process.standing.load(Ordering::Relaxed).min(HEIRS_MAX);
        let heard = self.ask(move |_, queue, now| {
            let Step { answer, notices } = queue.hand_on(now, &RULES, &held, (last.token, &label));
            (answer.map(|ttl| (ttl, queue.name_heirs(now, wants))), notices)
        });
        match heard.await? {
            (Some((ttl, (first, next))), Anchor { sent, .. }) => {
                let next = numbered(first.get(), next.into_iter());
                let confirmed = Confirmed { since: sent, ttl, next, is_cut: Arc::default() };
                let ours = |id| process.pushes.may_inherit(id);
                process.succession.heard(keys, last.id, confirmed, ours, self.world.now());
                process.pushes.remind(last.id);
                Ok(Released::Held)
            }
            (None, _) => {
                if let Some(last) = process.succession.lost(keys, link) {
                    process.pushes.tell(last, News::Lost);
                }
                link.verdict()
            }
        }
    }

    async fn make_known(&self, id: ClaimId) -> Answer<()> {
        match self.process().succession.unheard(&self.world.keys, id) {
            Some(link) => self.tell(id, &link).await.map(drop),
            None => Ok(()),
        }
    }

    /// `Backend::attempt`, and core's waiting.
    async fn wait(&self, claim: &Claim) -> Answer<Option<(Inheritance, oneshot::Receiver<News>)>> {
        let (process, id) = (self.process(), claim.id);
        loop {
            self.make_known(id).await?;
            let waiting = Waiting { label: claim.label.clone(), ttl: claim.ttl.get() };
            let (news, _) = process.pushes.listen(id, Some(waiting), self.world.now());
            let asks = claim.clone();
            let attempted =
                self.ask(move |_, queue, now| match queue.attempt(now, &RULES, &asks, None, Line::Join) {
                    Ok(Step { answer, notices }) => (Some(answer), notices),
                    Err(_) => (None, Vec::new()),
                });
            let (anchor, at_latest) = match attempted.await? {
                (None, _) => return Ok(None),
                (Some(Attempted::Granted { token, ttl }), anchor) => {
                    self.holds(id, token);
                    return Ok(Some((Inheritance { token, ttl, since: anchor.sent }, news)));
                }
                (Some(Attempted::Busy { at_latest, .. }), anchor) => (anchor, at_latest),
                (Some(Attempted::Settled(_)), _) => unreachable!("nothing is settled here"),
            };
            process.standing.fetch_add(1, Ordering::Relaxed);
            let standing = Counted(&process.standing);
            let news = timeout(at_latest, news).await;
            drop(standing);
            // Whoever is told wakes up a little later.
            if self.world.dice.below(8) == 0 {
                sleep(self.world.dice.up_to(Duration::from_millis(3))).await;
            }
            let grant = match news {
                Ok(Ok(News::Granted(push))) => {
                    dating::since(&anchor, push.granted_micros, &push.run_id, push.read_at)
                        .map(|since| Inheritance { token: push.token, ttl: push.ttl, since })
                }
                Ok(Ok(News::Inherited(inheritance))) if process.succession.is_last(&self.world.keys, id) => {
                    self.world.beliefs.lock().unwrap().inherited += 1;
                    Some(inheritance)
                }
                _ => None,
            };
            if let Some(grant) = grant {
                let (news, _) = process.pushes.listen(id, None, self.world.now());
                self.holds(id, grant.token);
                return Ok(Some((grant, news)));
            }
        }
    }

    /// `Inner::grant`.
    fn holds(&self, id: ClaimId, token: FencingToken) {
        let process = self.process();
        process.pushes.hold(id, token);
        if let Some(lost) = process.succession.granted(&self.world.keys, id, token) {
            process.pushes.tell(lost, News::Lost);
        }
    }

    async fn renew(&self, claim: &Claim) -> Answer<Renewal> {
        self.make_known(claim.id).await?;
        let asks = claim.clone();
        let renewed = self.ask(move |_, queue, now| {
            let Step { answer, notices } = queue.renew(now, &RULES, &asks);
            (answer, notices)
        });
        let (renewal, _) = renewed.await?;
        if matches!(renewal, Renewal::Lost(_)) {
            self.process().succession.stop(&self.world.keys, claim.id);
        }
        Ok(renewal)
    }

    /// Holds for a while. Answers until when it might have.
    async fn hold(
        &self,
        claim: &Claim,
        grant: Inheritance,
        mut news: oneshot::Receiver<News>,
    ) -> (Trail, BootInstant) {
        let (world, dice, id) = (&self.world, &self.world.dice, claim.id);
        let mut until = grant.since + grant.ttl - MARGIN;
        if world.now() >= until {
            return (Trail::Clean, until);
        }
        world.believe(id, grant.token, until);
        match dice.below(40) {
            0..14 => {}
            14..28 => sleep(dice.up_to(Duration::from_millis(2))).await,
            28..34 => {
                // What is told of it: that it is lost, or nothing that matters.
                let _ = timeout(dice.up_to(claim.ttl.get()), &mut news).await;
            }
            34..37 => loop {
                sleep(claim.ttl.get() / 4).await;
                let sent = world.now();
                if sent >= until || dice.below(5) == 0 {
                    break;
                }
                match self.renew(claim).await {
                    Ok(Renewal::Renewed { ttl }) if world.now() < until => {
                        until = until.max(sent + ttl - MARGIN);
                        world.believe(id, grant.token, until);
                    }
                    Ok(_) => break,
                    Err(_) => {}
                }
            },
            _ => sleep(until.saturating_since(world.now()) + dice.up_to(Duration::from_millis(100))).await,
        }
        world.disbelieve(id);
        (if dice.below(8) == 0 { Trail::Doubtful } else { Trail::Clean }, until)
    }

    pub(super) async fn party(self) {
        let (world, dice) = (&self.world, &self.world.dice);
        while world.began.elapsed() < LENGTH {
            let claim = self.claim();
            let patience = match dice.below(6) {
                0 => dice.up_to(Duration::from_millis(2)),
                1 => dice.up_to(Duration::from_millis(300)),
                _ => Duration::from_secs(3),
            };
            let (mut trail, mut until) = match timeout(patience, self.wait(&claim)).await {
                Ok(Ok(Some((grant, news)))) => self.hold(&claim, grant, news).await,
                _ => (Trail::Doubtful, BootInstant::from_nanos(0)),
            };
            // Now and then whoever asked does not wait for the answer, and somebody else asks again.
            if dice.below(6) == 0 {
                let _ = timeout(dice.up_to(Duration::from_micros(400)), self.end(&claim, trail)).await;
                until = BootInstant::from_nanos(0);
            }
            loop {
                match self.end(&claim, trail).await {
                    Ok(released) => {
                        let is_held = released == Released::Held || world.now() >= until;
                        assert!(
                            is_held,
                            "{} was told {released:?}, and had held all the time",
                            claim.id.to_hex()
                        );
                        break;
                    }
                    // Asked twice, it may have ended already.
                    Err(_) => (trail, until) = (Trail::Doubtful, BootInstant::from_nanos(0)),
                }
            }
            self.process().pushes.forget(claim.id);
            sleep(dice.up_to(Duration::from_micros(300))).await;
        }
    }

    fn claim(&self) -> Claim {
        let (mut whose, dice) = (self.world.whose.lock().unwrap(), &self.world.dice);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&(whose.len() as u64).to_le_bytes());
        let id = ClaimId::from_bytes(bytes);
        whose.insert(id, self.which);
        let ttl = [60, 100, 250, 250, 400][usize::try_from(dice.below(5)).expect("small")];
        Claim {
            name: LockName::new("a").expect("a good name"),
            id,
            mode: Mode::Exclusive,
            ttl: Ttl::new(Duration::from_millis(ttl)).expect("a good ttl"),
            tie: Tie::Process,
            label: Label::new("a/1/x").expect("a good label"),
            reason: None,
        }
    }
}

/// One less when it is dropped.
struct Counted<'a>(&'a AtomicUsize);

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What `release.lua` does: who gets the lock next is told in the answer, if it is of the process that asks.
fn release_of(
    world: &World,
    queue: &mut Queue,
    now: Now,
    which: usize,
    id: ClaimId,
    trail: Trail,
    wants: usize,
) -> (ReleaseAnswer, Vec<Notice>) {
    let Step { answer: released, mut notices } = queue.release(now, &RULES, id, trail);
    let whose = world.whose.lock().unwrap();
    let is_ours = |notice: &Notice| notice.grant.is_some() && whose.get(&notice.id) == Some(&which);
    let told = (released == Released::Held && trail == Trail::Clean && notices.first().is_some_and(is_ours))
        .then(|| notices.remove(0));
    let told = told.map(|notice| (world.message("L", &notice), queue.name_heirs(now, wants).1));
    (ReleaseAnswer { released, told }, notices)
}
