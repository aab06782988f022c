//! The suite, on every server that we can start.

mod common;

mod redis_7 {
    use super::common::ServerSubject;
    use tenure_testkit::servers::Kind;

    tenure_testkit::conformance!(ServerSubject::start(Kind::Redis7));
}

mod valkey_9 {
    use super::common::ServerSubject;
    use tenure_testkit::servers::Kind;

    tenure_testkit::conformance!(ServerSubject::start(Kind::Valkey9));
}

mod redis_6_2 {
    use super::common::ServerSubject;
    use tenure_testkit::servers::Kind;

    tenure_testkit::conformance!(ServerSubject::start(Kind::Redis62));
}

/// A server that speaks RESP2 only gets a second connection for pushes.
mod resp2 {
    use super::common::ServerSubject;
    use tenure_testkit::servers::Kind;

    tenure_testkit::conformance!(ServerSubject::start_with(Kind::Redis7, "?protocol=resp2"));
}

/// Keys that are shared with other programs.
mod plain {
    use super::common::ServerSubject;
    use tenure_testkit::servers::Kind;

    tenure_testkit::conformance!(ServerSubject::start_with(Kind::Redis7, "?plain"));
}

/// A server that forbids scripts, with the least of rights.
mod native {
    use super::common::ServerSubject;

    tenure_testkit::conformance!(ServerSubject::start_without_scripts().await);
}

/// Locks that are at three nodes, each at one of them.
mod cluster {
    use super::common::ClusterSubject;
    use tenure_testkit::servers::Kind;

    tenure_testkit::conformance!(ClusterSubject::start(Kind::Redis7));
}
