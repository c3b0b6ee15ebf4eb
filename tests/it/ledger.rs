//! What an operator reads and changes in a store: one suite for every kind of store, and what only Redis does.

mod many;
mod redis_store;
mod suite;

use std::{sync::Arc, time::Duration};

use tower_login_rate_limit::{
    Limit, Period, Token,
    clock::ManualClock,
    store::{BlockNote, BlockQuery, Key, MemoryStore, Settlement, Slot, Store},
};

use crate::support::START;

#[tokio::test]
async fn a_store_in_memory_conforms() {
    let clock = Arc::new(ManualClock::at(START));
    let store = MemoryStore::new().with_clock(Arc::clone(&clock));
    suite::run(&store, &clock).await;
}

/// A flood of blocks must not take more memory than the counters that are blocked.
#[tokio::test]
async fn a_flood_of_blocks_takes_no_more_entries_than_there_are_counters() {
    let clock = Arc::new(ManualClock::at(START));
    let store = MemoryStore::with_capacity(10).with_clock(Arc::clone(&clock));
    let ledger = store.ledger().expect("a ledger");
    let limit = Limit::attempts(1).within(Period::minutes(1)).build();
    let limit = limit.expect("a limit");
    let rules = ["flood"];
    for round in 0..5_u8 {
        for i in 0..10_u8 {
            let subject = [round, i];
            let key = Key::of_subject("flood", &subject);
            let counter = ledger.name(&key);
            let note = BlockNote::new(&counter, "flood", Period::Forever);
            // Of a counter that does not exist there is no entry.
            ledger.note(&note).await.expect("left out");
            let (token, slots) = ([Token::new()], [Slot::new(key, &limit)]);
            let recorded = store.settle(&token, Settlement::Recorded, &slots, Duration::ZERO);
            recorded.await.expect("recorded");
            ledger.note(&note).await.expect("noted");
            let count = ledger.block_counts(&rules).await.expect("a count")[0];
            assert!(count <= 10, "{count} entries");
        }
        clock.advance(Duration::from_secs(120));
    }
    // Those of the last round.
    let page = ledger.blocks(&BlockQuery::new(&rules)).await;
    assert_eq!(page.expect("a page").blocks.len(), 10);
}
