//! Whether the key secret is the one of the app.

use tower_login_rate_limit::{
    admin::{Block, BlockFilter},
    event::EventUser,
};

use super::finding::Findings;
use crate::{session::Session, store::StoreArgs};

/// How many blocks are tried.
const TRIED: usize = 20;
/// How long a name is shown in full, in bytes.
const MAX_NAME: usize = 320;

/// Blocks are listed with their user, as the app shows users, and found by a hash with the secret: one must lead to
/// the other.
pub(super) async fn look(session: &Session, args: &StoreArgs, findings: &mut Findings) {
    let Ok(page) = session
        .admin
        .blocks(&BlockFilter::new().with_limit(1_000))
        .await
    else {
        return;
    };
    let of_users = page.blocks.iter().filter(|block| block.by_user);
    let named = of_users.filter_map(|block| Some((block, name(session, block)?)));
    let (mut tried, mut found) = (0, 0);
    for (block, name) in named.take(TRIED) {
        let filter = BlockFilter::new().with_user(name).with_limit(1_000);
        if let Ok(listed) = session.admin.blocks(&filter).await {
            tried += 1;
            found += usize::from(listed.blocks.iter().any(|listed| listed.id == block.id));
        }
    }
    let has_secret = matches!(args.secret(), Ok(Some(_)));
    match (tried, found) {
        (0, _) if has_secret => findings.ok(
            "secret",
            "given; it can't be compared, as no block is listed with its user in clear",
        ),
        (0, _) => findings.ok(
            "secret",
            "none given; right if the app has none, which can't be seen, as no block is listed with its user in clear",
        ),
        (_, 0) => findings.problem(
            "secret",
            format!("none of {tried} users is found by name: the key secret is not the app's"),
            "pass the app's with --secret-file or LOGIN_RATE_LIMIT_SECRET; commands about users find nothing otherwise",
        ),
        (tried, found) if tried == found => {
            findings.ok("secret", format!("all of {tried} users are found by name"));
        }
        (tried, found) => findings.warning(
            "secret",
            format!("{found} of {tried} users are found by name"),
            "has the secret been changed, or does the app normalize names in its own way?",
        ),
    }
}

/// The name of the user, if it is in clear or can be opened, and was not cut.
fn name(session: &Session, block: &Block) -> Option<String> {
    let shown = block.user.as_ref().and_then(EventUser::shown)?;
    let name = session.opened(&shown);
    let is_clear =
        !name.contains("***") && !name.starts_with("hash:") && !name.starts_with("sealed:");
    (is_clear && name.len() <= MAX_NAME).then_some(name)
}
