//! The reference backend against the whole suite.

tenure_testkit::conformance!(tenure_testkit::MemorySubject::new());
