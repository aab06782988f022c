//! The embedded store under the conformance suite.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;
use tenure_core::queue::Rules;
use tenure_core::{Backend, async_trait};
use tenure_embedded::{Config, Embedded};
use tenure_testkit::Subject;

#[derive(Debug)]
struct Directory {
    store: Embedded,
    _outer: TempDir,
}

impl Directory {
    fn new(is_shared: bool) -> Self {
        let outer = tempfile::tempdir().unwrap();
        let mut config = Config::at(outer.path().join("locks"));
        config.shared = is_shared;
        config.rules = Rules {
            line_ttl: Duration::from_millis(2100),
            first_ttl: Duration::from_millis(700),
            tombstone_ttl: Duration::from_secs(3),
            ..Rules::DEFAULT
        };
        Self { store: Embedded::open(config).unwrap(), _outer: outer }
    }
}

#[async_trait]
impl Subject for Directory {
    async fn open(&self) -> Arc<dyn Backend> {
        Arc::new(self.store.clone())
    }

    async fn leftovers(&self) -> Vec<String> {
        self.store.stored_names().await.unwrap().iter().map(|name| format!("{name:?}")).collect()
    }
}

mod private {
    use super::Directory;
    tenure_testkit::conformance!(Directory::new(false));
}

/// Where others may write, news is only a hint: everything must work without trusting it.
mod shared {
    use super::Directory;
    tenure_testkit::conformance!(Directory::new(true));
}
