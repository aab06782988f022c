//! Where a claim comes from: `$TENURE_CLAIM`, a file, or standard input. Never an argument.

use std::io::Read;

use tenure::{DetachedClaim, LockName};

use crate::cli::ClaimArgs;
use crate::exit_code::ExitCode;
use crate::failure::{Failure, Outcome};
use crate::store::Store;

pub(crate) const CLAIM: &str = "TENURE_CLAIM";
/// No claim is longer: 256 bytes of name, 1 KiB of reason, the rest is small, and all is in hexadecimal.
const CLAIM_BYTES_MAX: u64 = 16 << 10;

/// The claim that was named on the command line, or else the one in the environment.
pub(crate) fn claim(args: &ClaimArgs) -> Outcome<Option<DetachedClaim>> {
    match explicit(args)? {
        Some(claim) => Ok(Some(claim)),
        None => from_environment(),
    }
}

/// The claim to act on. If `name` was said as well, it must be of that lock.
pub(crate) fn required(args: &ClaimArgs, name: Option<&LockName>, store: &Store) -> Outcome<DetachedClaim> {
    let claim = claim(args)?.ok_or_else(|| {
        Failure::new(ExitCode::Usage, format!("no claim: ${CLAIM} is not set"))
            .hint("--claim-file FILE and --claim - read it from elsewhere; `tenure acquire` prints it")
    })?;
    match name.map(|name| store.full_name(name.as_str())) {
        Some(name) if claim.name().as_str() != name => {
            let what = format!("the claim is of lock {:?}, not of {name:?}", claim.name());
            Err(Failure::new(ExitCode::Usage, what))
        }
        _ => Ok(claim),
    }
}

/// The claim that was named on the command line.
pub(crate) fn explicit(args: &ClaimArgs) -> Outcome<Option<DetachedClaim>> {
    if let Some(file) = &args.claim_file {
        let opened = std::fs::File::open(file);
        let text = opened.and_then(read).map_err(|error| {
            Failure::new(ExitCode::Usage, format!("cannot read the claim from {}: {error}", file.display()))
        })?;
        return parse(&text, &file.display().to_string()).map(Some);
    }
    match args.claim.as_deref() {
        None => Ok(None),
        Some("-") => {
            let text = read(std::io::stdin().lock()).map_err(|error| {
                Failure::new(ExitCode::Usage, format!("cannot read the claim from standard input: {error}"))
            })?;
            parse(&text, "standard input").map(Some)
        }
        // The value is not repeated: it may be the secret.
        Some(_) => Err(Failure::new(
            ExitCode::Usage,
            "a claim on the command line can be read by every user of this machine, and is refused; consider it known",
        )
        .hint("use $TENURE_CLAIM, --claim-file FILE or --claim -")),
    }
}

/// The claim in the environment.
pub(crate) fn from_environment() -> Outcome<Option<DetachedClaim>> {
    match std::env::var(CLAIM) {
        Ok(text) if !text.is_empty() => parse(&text, &format!("${CLAIM}")).map(Some),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => parse("", &format!("${CLAIM}")).map(Some),
    }
}

fn read(from: impl Read) -> std::io::Result<String> {
    let mut text = String::new();
    from.take(CLAIM_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn parse(text: &str, origin: &str) -> Outcome<DetachedClaim> {
    text.parse().map_err(|invalid| Failure::new(ExitCode::Usage, format!("in {origin}: {invalid}")))
}
