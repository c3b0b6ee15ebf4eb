//! Operators while Redis can't be reached.

use std::{error::Error, time::Duration};

use tower_login_rate_limit::{
    LoginLimiter, Policy,
    admin::{AdminErrorKind, BlockFilter, Forgive, Subject},
    store::{RedisStore, StoreError},
};

use super::{HOME, author, block, listed, pair, places};
use crate::support::{RedisServer, eventually, fail, ip, refused};

#[tokio::test]
async fn while_redis_is_down_every_request_fails_and_nothing_is_lost() {
    let redis = RedisServer::start();
    let builder = RedisStore::builder().with_deadline(Duration::from_millis(500));
    let store = builder.connect(redis.url()).await.unwrap();
    let limiter = LoginLimiter::new(Policy::default(), store);
    block(&limiter, ip(HOME), "alice").await;
    let admin = limiter.admin().unwrap();
    redis.pause();
    let errors = [
        admin.blocks(&BlockFilter::new()).await.unwrap_err(),
        admin.block_counts().await.unwrap_err(),
        admin.explain(&Subject::user("alice")).await.unwrap_err(),
        admin
            .unblock(Subject::user("alice"), &author())
            .await
            .unwrap_err(),
        admin
            .forgive(&Forgive::user("alice"), &author())
            .await
            .unwrap_err(),
        admin
            .forget_address("alice", None, &author())
            .await
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), AdminErrorKind::Store);
        let source = error
            .source()
            .and_then(|source| source.downcast_ref::<StoreError>());
        assert!(source.is_some(), "{error:?}");
    }
    redis.resume();
    let found = loop {
        match admin.blocks(&BlockFilter::new()).await {
            Ok(page) => break page.blocks,
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    assert_eq!(places(&found), [pair(HOME)]);
    refused(limiter.reserve((ip(HOME), "alice")).await);
}

/// The entry of a block is written again if Redis fails at first, and a shutdown waits for it.
#[tokio::test]
async fn a_block_is_listed_although_its_entry_was_not_written_at_first() {
    let redis = RedisServer::start();
    let limiter = LoginLimiter::new(Policy::default(), redis.store().await);
    block(&limiter, ip(HOME), "alice").await;
    let keys = redis.keys().into_iter().map(|(key, _)| key);
    let index: Vec<_> = keys.filter(|key| key.contains("blocks")).collect();
    assert!(!index.is_empty());
    limiter.unblock((ip(HOME), "alice")).await.unwrap();
    redis.flush();
    for key in &index {
        redis.command::<()>(&["SET", key, "in the way"]);
    }
    fail(&limiter, ip(HOME), "alice", 5).await;
    eventually(|| redis.errors_of("WRONGTYPE") > 0).await;
    for key in &index {
        redis.command::<()>(&["DEL", key]);
    }
    limiter.all_settled().await.unwrap();
    let admin = limiter.admin().unwrap();
    let found = listed(&admin, &BlockFilter::new()).await;
    assert_eq!(places(&found), [pair(HOME)]);
}
