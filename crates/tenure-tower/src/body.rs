//! [`ReplayBody`]: the body of a response behind the layer, and how it is read in order to be kept.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;

/// The body of a response that went through an [`IdempotencyLayer`](crate::IdempotencyLayer): what was read of it
/// already or came from a record, then whatever the handler's own body still has.
pub struct ReplayBody<R> {
    /// Read already, not yet sent.
    frames: VecDeque<Frame<Bytes>>,
    /// Taken away once it has ended, so that it is never polled again.
    rest: Option<Pin<Box<R>>>,
}

/// What reading a body came to.
pub(crate) enum Reading<R: Body> {
    /// All of it, within the limit.
    Whole(Bytes),
    /// It is larger than the limit, or has trailers: this is it all the same, to be sent on.
    Beyond(ReplayBody<R>),
    Failed(R::Error),
}

impl<R> ReplayBody<R> {
    /// A handler's body, as it is.
    pub(crate) fn inner(body: R) -> Self {
        Self { frames: VecDeque::new(), rest: Some(Box::pin(body)) }
    }

    /// These bytes and no more.
    pub(crate) fn whole(bytes: Bytes) -> Self {
        let frames = if bytes.is_empty() { VecDeque::new() } else { VecDeque::from([Frame::data(bytes)]) };
        Self { frames, rest: None }
    }
}

/// Reads `body` as far as `limit`.
pub(crate) async fn read<R: Body<Data = Bytes>>(body: R, limit: usize) -> Reading<R> {
    let mut body = Box::pin(body);
    if body.size_hint().lower() > limit as u64 {
        return Reading::Beyond(ReplayBody { frames: VecDeque::new(), rest: Some(body) });
    }
    let mut frames = VecDeque::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => return Reading::Failed(error),
        };
        let has_trailers = frame.is_trailers();
        length += frame.data_ref().map_or(0, Bytes::len);
        frames.push_back(frame);
        if has_trailers || length > limit {
            return Reading::Beyond(ReplayBody { frames, rest: Some(body) });
        }
    }
    let mut data = frames.into_iter().filter_map(|frame| frame.into_data().ok());
    let first = data.next().unwrap_or_default();
    if first.len() == length {
        return Reading::Whole(first);
    }
    let mut whole = BytesMut::with_capacity(length);
    whole.extend_from_slice(&first);
    data.for_each(|more| whole.extend_from_slice(&more));
    Reading::Whole(whole.freeze())
}

impl<R: Body<Data = Bytes>> Body for ReplayBody<R> {
    type Data = Bytes;
    type Error = R::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, R::Error>>> {
        if let Some(frame) = self.frames.pop_front() {
            return Poll::Ready(Some(Ok(frame)));
        }
        let Some(rest) = &mut self.rest else { return Poll::Ready(None) };
        let frame = ready!(rest.as_mut().poll_frame(cx));
        if !matches!(frame, Some(Ok(_))) {
            self.rest = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.frames.is_empty() && self.rest.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let read: u64 = self.frames.iter().filter_map(Frame::data_ref).map(|data| data.len() as u64).sum();
        let rest = self.rest.as_ref().map_or(SizeHint::with_exact(0), Body::size_hint);
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(read));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(read));
        }
        hint
    }
}

impl<R> fmt::Debug for ReplayBody<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBody").field("frames", &self.frames.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use std::convert::Infallible;

    /// Sends its frames one by one; polling it after its end is a mistake.
    struct Frames(Option<VecDeque<Frame<Bytes>>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Infallible;
        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let frame = self.0.as_mut().expect("not polled after its end").pop_front();
            if frame.is_none() {
                self.0 = None;
            }
            Poll::Ready(frame.map(Ok))
        }
    }

    fn frames(texts: &[&'static str], has_trailers: bool) -> Frames {
        let mut frames: VecDeque<_> = texts.iter().map(|text| Frame::data(Bytes::from(*text))).collect();
        frames.extend(has_trailers.then(|| Frame::trailers(HeaderMap::new())));
        Frames(Some(frames))
    }

    #[tokio::test]
    async fn a_body_within_the_limit_is_read_whole() {
        for texts in [&[][..], &["four"], &["fo", "", "ur"]] {
            let Reading::Whole(bytes) = read(frames(texts, false), 4).await else { panic!("{texts:?}") };
            assert_eq!(bytes, texts.concat());
        }
    }

    #[tokio::test]
    async fn a_body_beyond_the_limit_or_with_trailers_is_passed_on_complete() {
        for (texts, has_trailers) in [(&["abc", "de", "f"][..], false), (&["abc"], true)] {
            let Reading::Beyond(mut body) = read(frames(texts, has_trailers), 4).await else { panic!() };
            let mut sent = Vec::new();
            let mut trailers = false;
            while let Some(Ok(frame)) = body.frame().await {
                trailers |= frame.is_trailers();
                sent.extend(frame.into_data().unwrap_or_default());
            }
            assert_eq!((sent, trailers), (texts.concat().into_bytes(), has_trailers));
            // Ended, and asked again: the inner body is not.
            assert!(body.frame().await.is_none() && body.is_end_stream());
        }
    }

    #[test]
    fn a_replayed_body_knows_its_length() {
        let body = ReplayBody::<Frames>::whole(Bytes::from_static(b"four"));
        assert_eq!(body.size_hint().exact(), Some(4));
        assert!(ReplayBody::<Frames>::whole(Bytes::new()).is_end_stream());
    }
}
