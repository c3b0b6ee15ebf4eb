//! What the instances tell users apart by, if they have no key secret.

use tower_login_rate_limit::{
    Token,
    store::{RedisStore, StoreError, StoreErrorKind},
};

/// The first instance writes it. In this form for its rights, which the store needs too.
const GET_OR_SET: &str = "
local secret = redis.call('HGET', KEYS[1], 'secret')
if not secret then
    secret = ARGV[1]
    redis.call('HSET', KEYS[1], 'secret', secret)
end
return secret";

/// A random secret in Redis: readers of the API can't test names with it. Those of Redis can, as they can without a key
/// secret anyway.
pub(super) async fn get(store: &RedisStore, prefix: &str) -> Result<Vec<u8>, StoreError> {
    let mut command = redis::cmd("EVAL");
    command
        .arg(GET_OR_SET)
        .arg(1)
        .arg(format!("{prefix}:{{insight}}"));
    let reply = store.query(command.arg(random()).to_owned()).await?;
    redis::from_redis_value(reply).map_err(|error| {
        let message = format!("the shared secret can't be read: {error}");
        StoreError::new(StoreErrorKind::Protocol, message)
    })
}

/// One that no other instance has.
pub(super) fn random() -> Vec<u8> {
    Token::new().to_string().into_bytes()
}
