//! The lock in the server: the scripts, on our clock.

use super::*;

/// A script that runs on our clock, and answers {its reply, what it published}.
fn on_our_clock(code: &str) -> String {
    let code = code
        .replace("redis.call('TIME')", "fake_time")
        .replace("call('TIME')", "fake_time")
        .replace("'PX', ttl)", "'PXAT', now + ttl)")
        .replace("redis.call('PTTL', ", "fake_pttl(")
        .replace(" call('PTTL', ", " fake_pttl(")
        .replace("redis.pcall('PUBLISH', ", "fake_publish(")
        .replace("pcall_('PUBLISH', ", "fake_publish(");
    format!(
        "local fake_micros = table.remove(ARGV)
         local fake_time = {{table.remove(ARGV), fake_micros}}
         local fake_ms = math.floor((fake_time[1] * 1000000 + fake_time[2]) / 1000)
         local pushes = {{}}
         local function fake_publish(channel, push) pushes[#pushes + 1] = push return 1 end
         local function fake_pttl(key)
           local at = redis.call('PEXPIRETIME', key)
           return at < 0 and at or at - fake_ms
         end
         for _, side in ipairs({{'', ':c', ':t', ':s', ':q', ':d'}}) do
           local key = KEYS[2] .. side
           local at = redis.call('PEXPIRETIME', key)
           if at >= 0 and at < fake_ms then redis.call('DEL', key) end
         end
         local function script()
         {code}
         end
         return {{script(), pushes}}"
    )
}

/// The lock in the server.
pub(super) struct Real {
    pub(super) connection: MultiplexedConnection,
    scripts: Vec<(String, redis::Script)>,
    pub(super) layout: Layout,
}

impl Real {
    pub(super) async fn start(server: &Server, mutate: impl Fn(&str) -> String) -> Self {
        let client = redis::Client::open(server.url()).expect("a good URL");
        let patient =
            redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection =
            client.get_multiplexed_async_connection_with_config(&patient).await.expect("a server");
        let scripts = Scripts::new(&RULES);
        let sources = scripts.all().map(|script| on_our_clock(&mutate(&script.code)));
        let scripts = sources.map(|source| (source.clone(), redis::Script::new(&source))).to_vec();
        Self { connection, scripts, layout: Layout::new("tenure", false) }
    }

    pub(super) async fn run(
        &mut self,
        script: usize,
        name: &LockName,
        now: u64,
        arguments: &[String],
    ) -> Answer<(Value, Told)> {
        let keys = self.layout.keys(name);
        let call = |first: &str, second: &str| {
            let mut command = Cmd::new();
            command.arg(first).arg(second).arg(2).arg(format!("{}:f", keys.main()));
            keys.write_to(&mut command);
            // Two of them have a header of their own.
            let header: &[&str] = match script {
                0 => &["0", "9007199254740991"],
                2 => &[release_header(now)],
                5 => &["9007199254740991"],
                _ => &["run", "channel", "0", "9007199254740991"],
            };
            command.arg(header);
            command.arg(arguments).arg(now / 1_000_000).arg(now % 1_000_000);
            command
        };
        let hash = self.scripts[script].1.get_hash();
        let mut answer = self.connection.send_packed_command(&call("EVALSHA", hash)).await;
        if answer.as_ref().is_ok_and(|answer| matches!(answer, Value::ServerError(_))) {
            let mut load = Cmd::new();
            load.arg("SCRIPT").arg("LOAD").arg(&self.scripts[script].0);
            self.connection.send_packed_command(&load).await.expect("it compiles");
            answer = self.connection.send_packed_command(&call("EVALSHA", hash)).await;
        }
        let answer = answer.and_then(Value::extract_error).expect("the script runs");
        let Value::Array(mut parts) = answer else { panic!("not two parts") };
        let pushes = parts.pop().expect("pushes");
        let Value::Array(pushes) = pushes else { panic!("no pushes") };
        let told = pushes.iter().map(|push| told_by(text(push).expect("text"))).collect();
        Ok((parts.pop().expect("a reply"), told))
    }
}

/// Now as the process whose claims they are, now as another, now as one that may not read the answer any more.
const fn release_header(now: u64) -> &'static str {
    match now / 1000 % 6 {
        0 => "run\n0\nchannel\n9007199254740991\n0",
        3 => "run\n0\nchannel\n9007199254740991\n2",
        1 | 4 => "run\n0\nanother\n9007199254740991\n2",
        _ => "run\n0\nchannel\n1\n2",
    }
}

pub(super) const fn is_told_in_the_answer(now: u64) -> bool {
    (now / 1000).is_multiple_of(3)
}

fn told_by(push: &str) -> String {
    let fields: Vec<&str> = push.split('\n').collect();
    match fields.as_slice() {
        ["G", id, token, ttl, ..] => format!("{id} granted {token} for {ttl}ms"),
        ["L", id] => format!("{id} look"),
        ["E", id, ..] => format!("{id} evicted"),
        _ => panic!("{push:?}"),
    }
}

/// What the script does.
pub(super) async fn real(
    real: &mut Real,
    now: u64,
    claims: &[Claim],
    verb: &Verb,
) -> (String, Told, SetAside) {
    let mut set_aside = SetAside::default();
    let (answer, told) = real_step(real, now, claims, verb, &mut set_aside).await;
    (answer, told, set_aside)
}

async fn real_step(
    real: &mut Real,
    now: u64,
    claims: &[Claim],
    verb: &Verb,
    set_aside: &mut SetAside,
) -> (String, Told) {
    let name = &claims[0].name;
    let one = |reply: Value| Answers::parse(reply, ASKED).and_then(|mut answers| answers.next());
    match verb {
        Verb::Attempt(i, line) => {
            let claim = &claims[*i];
            // Now and then the client takes the lock for busy, rightly or not.
            let is_guess =
                (claim.mode, *line) == (Mode::Exclusive, Line::Join) && (now / 1000).is_multiple_of(2);
            let arguments = [
                format!("{}{}\nrun", mode_text(claim.mode, *line), if is_guess { "?" } else { "" }),
                millis(claim.ttl.get()).to_string(),
                "channel\n".into(),
                value_of(claim),
            ];
            let (reply, told) = real.run(0, name, now, &arguments).await.expect("an answer");
            let attempted = one(reply).and_then(|item| reply::attempted(name, claim.mode.shape(), item));
            let answer = match attempted {
                Ok(Attempted::Granted(token)) => format!("granted {token} {:?}", claim.ttl.get()),
                Ok(Attempted::Busy { holder, ahead, .. }) => {
                    format!("busy {} {}", holder.is_some(), ahead.is_some())
                }
                Ok(Attempted::Settled(outcome)) => format!("settled {:?}", outcome.to_vec()),
                Err(error) => return (kind_of(&error), Vec::new()),
            };
            (answer, told)
        }
        Verb::Renew(i) => {
            let ttl = claims[*i].ttl.get();
            let arguments = [value_of(&claims[*i]), millis(ttl).to_string()];
            let (reply, told) = real.run(1, name, now, &arguments).await.expect("an answer");
            let item = one(reply).expect("a renewal");
            let renewal = match (unsigned(&item), item) {
                (Some(1), _) => Renewal::Renewed { ttl },
                (Some(0), _) => Renewal::Lost(Why::Gone),
                (_, Value::Array(fields)) => {
                    Renewal::Lost(Why::Evicted { reason: Reason::new(text(&fields[1]).expect("text")).ok() })
                }
                other => panic!("{other:?}"),
            };
            (format!("{renewal:?}"), told)
        }
        Verb::Release(i, trail) => {
            let trail = if *trail == Trail::Clean { "c" } else { "d" };
            let arguments = [format!("{trail}{ASKED}"), value_of(&claims[*i])];
            let (reply, mut told) = real.run(2, name, now, &arguments).await.expect("an answer");
            let mut answers = Answers::parse(reply, ASKED).expect("answers");
            let released = reply::released(&answers.next().expect("an answer")).expect("a release");
            if let Some(push) = answers.items.next() {
                let push = told_by(text(&push).expect("text"));
                told.push(if is_told_in_the_answer(now) { push } else { format!("to nobody: {push}") });
                *set_aside = SetAside::of(None, answers.items.as_slice());
            }
            (format!("{released:?}"), told)
        }
        Verb::Settle(i) => {
            let arguments = [value_of(&claims[*i]), "done".into(), "20000".into()];
            let (reply, told) = real.run(3, name, now, &arguments).await.expect("an answer");
            let recorded = unsigned(&one(reply).expect("an answer")) == Some(1);
            let settled = if recorded { Settled::Recorded } else { Settled::NotHeld };
            (format!("{settled:?}"), told)
        }
        Verb::Evict { token, force } => {
            let arguments = [
                token.map_or(0, FencingToken::get).to_string(),
                u8::from(*force).to_string(),
                "because".into(),
            ];
            let (reply, told) = real.run(4, name, now, &arguments).await.expect("an answer");
            let evicted = unsigned(&one(reply).expect("an answer")).expect("a number");
            (format!("{evicted} evicted"), told)
        }
        Verb::HandOn(held, token) => {
            let last = &claims[*held.last().expect("somebody")];
            let mut arguments = vec!["2".into(), token.to_string(), value_of(last)];
            arguments.extend(held.iter().map(|i| claims[*i].id.to_hex()));
            let (reply, told) = real.run(6, name, now, &arguments).await.expect("an answer");
            let ttl = match one(reply).expect("an answer") {
                Value::Array(fields) => {
                    let first = unsigned(&fields[1]).filter(|first| *first > 0);
                    *set_aside = SetAside::of(first, &fields[2..]);
                    unsigned(&fields[0])
                }
                _ => None,
            };
            (format!("handed on {ttl:?}"), told)
        }
    }
}
