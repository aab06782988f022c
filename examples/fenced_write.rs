//! Why a lock is not enough, and what is: the resource itself refuses whoever comes too late.
//!
//! A holder that hangs (a long pause, a swapped-out machine, a slow network) does not know that its lease has ended, and
//! no lock in the world can stop what it has already sent. But its token is lower than its successor's.

#![forbid(unsafe_code)]

use tenure::{Eviction, FencingToken, Locks};

/// The protected resource. In a database: one more column, and `WHERE token <= $token` in the update.
#[derive(Debug)]
struct Document {
    text: String,
    /// The highest token it has seen.
    token: FencingToken,
}

impl Document {
    /// Compares and writes in one step.
    fn write(&mut self, text: &str, token: FencingToken) -> Result<(), String> {
        if token < self.token {
            return Err(format!("refused: token {token} is older than {}", self.token));
        }
        (self.text, self.token) = (text.into(), token);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let locks = Locks::in_memory();
    let mut document = Document { text: String::new(), token: FencingToken::new(0) };

    let slow = locks.lock("document").label("slow").acquire().await?;
    document.write("first draft, by slow", slow.token())?;
    println!("slow wrote under its token");

    // It hangs; an operator takes the lock away and passes it on at once.
    locks.evict("document", Eviction::because("it hangs")?.force()).await?;
    let quick = locks.lock("document").label("quick").acquire().await?;
    assert!(quick.token() > slow.token(), "tokens rise from grant to grant");
    document.write("second draft, by quick", quick.token())?;
    println!("quick wrote under a higher one");

    // Now slow wakes up. What it does before it looks at its lease, or what was on its way already, comes too late.
    match document.write("first draft, once more", slow.token()) {
        Ok(()) => return Err("a stale write was accepted".into()),
        Err(refusal) => println!("slow was {}", refusal.split(':').next().unwrap_or_default()),
    }
    // It is told, too; only that may be too late for what it has sent.
    println!("slow lost the lock: {}", slow.lost().await);
    println!("the document says: {}", document.text);
    quick.release().await?;
    Ok(())
}
