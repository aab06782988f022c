//! What a claim is told while it waits and while it holds.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_core::{BootInstant, BoxFuture, Claim, ClaimId, FencingToken, Grant, Why};
use tokio::sync::oneshot;

use super::Inner;
use crate::dating::{self, Anchor};
use crate::newcomers::Standing;
use crate::pushes::{News, Waiting};
use crate::succession::Inheritance;

/// How often the first in line looks when the holder is a client that will not tell.
const POLL: Duration = Duration::from_millis(50);

impl Inner {
    pub(crate) fn grant(
        self: &Arc<Self>,
        claim: &Claim,
        token: FencingToken,
        ttl: Duration,
        since: BootInstant,
        news: oneshot::Receiver<News>,
    ) -> Grant {
        self.pushes.hold(claim.id, token);
        if !self.succession.is_idle()
            && let Some(lost) = self.succession.granted(&self.layout.keys(&claim.name), claim.id, token)
        {
            self.pushes.tell(lost, News::Lost);
        }
        Grant { token, ttl, since, revoked: Some(self.revoked(claim, token, news)) }
    }

    /// Completes when the grant of a claim is taken away early.
    fn revoked(
        self: &Arc<Self>,
        claim: &Claim,
        token: FencingToken,
        mut news: oneshot::Receiver<News>,
    ) -> BoxFuture<'static, Why> {
        let (inner, id, name) = (Arc::downgrade(self), claim.id, claim.name.clone());
        Box::pin(async move {
            loop {
                let told = (&mut news).await;
                let Some(inner) = inner.upgrade() else { return std::future::pending().await };
                match told {
                    Ok(News::Evicted(reason)) => {
                        inner.succession.stop(&inner.layout.keys(&name), id);
                        return Why::Evicted { reason };
                    }
                    Ok(News::Lost) => return Why::Gone,
                    // A push from before we knew that we hold.
                    Ok(News::Granted(_) | News::Inherited(_) | News::Look) => {
                        news = inner.listen(id, None).0;
                        inner.pushes.hold(id, token);
                    }
                    // Released, or granted again: this grant is not taken away.
                    Err(_) => std::future::pending().await,
                }
            }
        })
    }

    /// Completes when the waiting claim is granted or should look again.
    pub(super) fn signal(
        self: &Arc<Self>,
        claim: &Claim,
        anchor: Anchor,
        news: oneshot::Receiver<News>,
    ) -> BoxFuture<'static, Option<Grant>> {
        let (inner, claim) = (self.clone(), claim.clone());
        Box::pin(async move {
            let keys = inner.layout.keys(&claim.name);
            let standing = Standing::new(&inner.newcomers, keys.clone());
            let news = news.await;
            drop(standing);
            let Inheritance { token, ttl, since } = match news {
                Ok(News::Granted(push)) => {
                    let since = dating::since(&anchor, push.granted_micros, &push.run_id, push.read_at)?;
                    Inheritance { token: push.token, ttl: push.ttl, since }
                }
                // If it is not lost again.
                Ok(News::Inherited(inheritance)) if inner.succession.is_last(&keys, claim.id) => inheritance,
                _ => return None,
            };
            inner.seen.fetch_max(token.get(), Ordering::Relaxed);
            let (news, _) = inner.listen(claim.id, None);
            Some(inner.grant(&claim, token, ttl, since, news))
        })
    }

    pub(crate) fn listen(
        &self,
        id: ClaimId,
        may_inherit: Option<Waiting>,
    ) -> (oneshot::Receiver<News>, bool) {
        self.pushes.listen(id, may_inherit, self.clock.now())
    }

    pub(super) fn forget(&self, id: ClaimId) {
        self.pushes.forget(id);
    }

    /// When to look again: as the script says, or sooner if nobody will tell us.
    pub(super) fn look_after(
        &self,
        said: Duration,
        ahead: Option<u32>,
        is_subscribed: bool,
        holder_tells: bool,
    ) -> Duration {
        if is_subscribed && holder_tells {
            return said;
        }
        let jitter = 0.5 + self.place.config().seams.entropy.fraction();
        let factor = match ahead {
            None | Some(0) => 1,
            Some(1..=3) => 8,
            Some(_) => 40,
        };
        said.min((POLL * factor).mul_f64(jitter))
    }
}
