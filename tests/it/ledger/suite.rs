//! What every ledger must do, with the time set by the test.

use std::{collections::HashSet, sync::Arc, time::Duration};

use tower_login_rate_limit::{
    Address, AttemptId, KnownAddresses, Limit, Period, Token,
    algorithm::State,
    clock::ManualClock,
    store::{
        BlockNote, BlockQuery, CounterName, Document, Key, Ledger, ListedBlock, Settlement, Slot,
        Store, StoreErrorKind,
    },
};

use crate::support::{HOUR, MINUTE, SECOND, START};

/// Everything, on a store that is empty.
pub async fn run(store: &dyn Store, clock: &ManualClock) {
    let test = Test {
        store,
        clock,
        ledger: store.ledger().expect("a ledger"),
    };
    test.counters_have_names_that_are_text().await;
    test.blocks_are_listed_in_the_order_in_which_they_lift()
        .await;
    test.blocks_are_found_by_rule_address_subject_and_network()
        .await;
    test.paging_misses_nothing_that_stays_and_returns_nothing_twice()
        .await;
    test.blocks_that_lift_at_one_moment_are_paged_by_name()
        .await;
    test.bad_cursors_and_names_are_errors_that_tell_so().await;
    test.an_entry_that_was_renewed_is_not_dropped().await;
    test.attempts_are_shown_as_they_are().await;
    test.summaries_are_shown_as_they_count().await;
    test.an_attempt_whose_spelling_is_not_known_yet_is_listed()
        .await;
    test.clearing_removes_failures_of_every_spelling_and_nothing_in_flight()
        .await;
    test.clearing_a_bucket_fills_it().await;
    test.known_addresses_are_forgotten().await;
    test.documents_are_replaced_by_compare_and_set().await;
    test.the_last_versions_are_kept().await;
    test.instances_report_until_their_time_is_over().await;
    test.texts_are_bounded().await;
}

struct Test<'a> {
    store: &'a dyn Store,
    clock: &'a ManualClock,
    ledger: Arc<dyn Ledger>,
}

fn address(text: &str) -> Address {
    text.parse().expect("an address")
}

fn three() -> Limit {
    let limit = Limit::attempts(3).within(Period::hours(1));
    let limit = limit.blocked_for(Period::hours(2)).build();
    limit.expect("a limit")
}

impl Test<'_> {
    async fn fail(&self, slot: Slot<'_>) -> Token {
        let token = Token::new();
        let (slots, lease) = ([slot], Duration::from_secs(30));
        let reserved = self.store.reserve(token, lease, &slots).await;
        assert!(reserved.expect("a reply").admitted());
        let settled = self
            .store
            .settle(&[token], Settlement::Failed, &slots, Duration::ZERO);
        settled.await.expect("settled");
        token
    }

    /// Notes a block of a counter that exists, which lifts after so many milliseconds.
    async fn note(&self, rule: &str, key: Key<'_>, lifts: u64, text: &str) -> CounterName {
        let limit = Limit::attempts(1).within(Period::days(1)).build();
        let limit = limit.expect("a limit");
        let slot = Slot::new(key, &limit);
        let failed = self.store.settle(
            &[Token::new()],
            Settlement::Recorded,
            &[slot],
            Duration::ZERO,
        );
        failed.await.expect("recorded");
        let counter = self.ledger.name(&key);
        let period = match lifts {
            u64::MAX => Period::Forever,
            lifts => Period::Of(Duration::from_millis(lifts)),
        };
        let mut note = BlockNote::new(&counter, rule, period).with_text(text);
        if let Some(address) = key.address() {
            note = note.at_address(address);
        }
        if !key.subject().is_empty() {
            note = note.of_subject(key.subject());
        }
        self.ledger.note(&note).await.expect("noted");
        counter
    }

    /// All pages of a query, and that no page is longer than asked for.
    async fn list(&self, query: BlockQuery<'_>) -> Vec<ListedBlock> {
        let (mut blocks, mut cursor) = (Vec::new(), None::<String>);
        loop {
            let mut query = query;
            if let Some(cursor) = &cursor {
                query = query.after(cursor);
            }
            let page = self.ledger.blocks(&query).await.expect("a page");
            assert!(page.blocks.len() <= query.limit);
            assert_eq!(page.now, self.now());
            blocks.extend(page.blocks);
            cursor = page.next;
            if cursor.is_none() {
                return blocks;
            }
        }
    }

    async fn texts(&self, query: BlockQuery<'_>) -> Vec<String> {
        let blocks = self.list(query).await.into_iter();
        blocks.map(|block| block.text).collect()
    }

    fn now(&self) -> u64 {
        use tower_login_rate_limit::clock::Clock;
        self.clock.now()
    }

    fn pass(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    async fn counters_have_names_that_are_text(&self) {
        let keys = [
            Key::of_address(address("192.0.2.1"), "names"),
            Key::of_address(address("192.0.2.1"), "names").and_subject(b"alice"),
            Key::of_address(address("2001:db8:1:2::/64"), "names"),
            Key::of_subject("names", b"alice"),
        ];
        let names: Vec<_> = keys.iter().map(|key| self.ledger.name(key)).collect();
        for name in &names {
            let again: CounterName = name.to_string().parse().expect("a name");
            assert_eq!(again, *name);
            assert!(!name.as_str().contains("alice"));
        }
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), keys.len());
        assert_eq!(self.ledger.name(&keys[1]), names[1]);
    }

    async fn blocks_are_listed_in_the_order_in_which_they_lift(&self) {
        let key = |i: u8| Key::of_address(Address::new([192, 0, 2, i].into(), 64), "order");
        for (i, lifts) in [(1, 3 * HOUR), (2, u64::MAX), (3, HOUR), (4, 2 * HOUR)] {
            self.note("order", key(i), lifts, &format!("{i}")).await;
        }
        // Until after the end of the clock.
        self.note("aeon", key(5), u64::MAX - 1, "5").await;
        assert_eq!(self.texts(BlockQuery::new(&["aeon"])).await, ["5"]);
        let rules = ["order"];
        let blocks = self.list(BlockQuery::new(&rules)).await;
        let texts: Vec<_> = blocks.iter().map(|block| &*block.text).collect();
        assert_eq!(texts, ["3", "4", "1", "2"]);
        let lifts: Vec<_> = blocks.iter().map(|block| block.lifts_at).collect();
        let at = |after: u64| Some(self.now() + after);
        assert_eq!(lifts, [at(HOUR), at(2 * HOUR), at(3 * HOUR), None]);
        assert_eq!(blocks[0].counter, self.ledger.name(&key(3)));
        assert_eq!(blocks[0].rule, "order");
        assert_eq!(blocks[0].address, Some(address("192.0.2.3")));

        // Noted again, it has the new time, and one entry.
        self.note("order", key(3), 4 * HOUR, "3").await;
        assert_eq!(
            self.texts(BlockQuery::new(&rules)).await,
            ["4", "1", "3", "2"]
        );
        let counts = self.ledger.block_counts(&["order", "no-such-rule"]).await;
        assert_eq!(counts.expect("counts"), [4, 0]);

        // What has lifted is not listed.
        self.pass(2 * HOUR);
        assert_eq!(self.texts(BlockQuery::new(&rules)).await, ["1", "3", "2"]);
        let counts = self.ledger.block_counts(&rules).await;
        assert_eq!(counts.expect("counts"), [3]);
        assert!(self.list(BlockQuery::new(&[])).await.is_empty());
        self.pass(2 * HOUR);
        assert_eq!(self.texts(BlockQuery::new(&rules)).await, ["2"]);
    }

    async fn blocks_are_found_by_rule_address_subject_and_network(&self) {
        let (here, there) = (address("198.51.100.1"), address("198.51.200.1"));
        let network = address("2001:db8:1::/56");
        let pair =
            |address, user: &'static [u8]| Key::of_address(address, "pair").and_subject(user);
        for (rule, key, text) in [
            ("pair", pair(here, b"alice"), "alice here"),
            ("pair", pair(here, b"bob"), "bob here"),
            ("pair", pair(there, b"alice"), "alice there"),
            ("pair", pair(network, b"alice"), "alice in a network"),
            ("place", Key::of_address(here, "place"), "here"),
            ("place", Key::of_address(network, "place"), "a network"),
            ("user", Key::of_subject("user", b"alice"), "alice"),
        ] {
            self.pass(1);
            self.note(rule, key, HOUR, text).await;
        }
        let rules = ["pair", "place", "user"];
        let all = BlockQuery::new(&rules);
        assert_eq!(self.list(all).await.len(), 7);
        let (pairs, places) = (BlockQuery::new(&["pair"]), BlockQuery::new(&["place"]));
        assert_eq!(self.texts(places).await, ["here", "a network"]);
        let at_here = ["alice here", "bob here", "here"];
        assert_eq!(self.texts(all.at_address(here)).await, at_here);
        assert_eq!(self.texts(places.at_address(here)).await, ["here"]);
        let in_network = ["alice in a network", "a network"];
        assert_eq!(self.texts(all.at_address(network)).await, in_network);
        let alice = ["alice here", "alice there", "alice in a network", "alice"];
        assert_eq!(self.texts(all.of_subject(b"alice")).await, alice);
        assert_eq!(self.texts(pairs.of_subject(b"alice")).await, alice[..3]);
        let one = all.of_subject(b"alice").at_address(there);
        assert_eq!(self.texts(one).await, ["alice there"]);
        assert!(self.list(all.of_subject(b"carol")).await.is_empty());
        let v4 = "198.51.0.0".parse().expect("an address");
        let all_v4 = ["alice here", "bob here", "alice there", "here"];
        assert_eq!(self.texts(all.in_network(v4, 16)).await, all_v4);
        let half = "198.51.100.0".parse().expect("an address");
        assert_eq!(self.texts(all.in_network(half, 24)).await, at_here);
        let v6 = "2001:db8::".parse().expect("an address");
        assert_eq!(self.texts(all.in_network(v6, 32)).await, in_network);
        // In pages of one, too.
        let small = all.in_network(v4, 16).with_limit(1);
        assert_eq!(self.texts(small).await, all_v4);

        // Dropped by one way to find it, it is gone from all of them.
        let found = self.list(one).await;
        assert!(found[0].subject.is_some());
        let shown = format!("{found:?}");
        assert!(!shown.replace("alice there", "").contains("alice"));
        self.ledger.drop_notes(&found).await.expect("dropped");
        assert!(self.list(one).await.is_empty());
        assert_eq!(self.list(all).await.len(), 6);
        assert_eq!(self.list(all.of_subject(b"alice")).await.len(), 3);
        assert!(self.list(all.at_address(there)).await.is_empty());
        self.ledger.drop_notes(&found).await.expect("again");
    }

    async fn paging_misses_nothing_that_stays_and_returns_nothing_twice(&self) {
        const BLOCKS: u32 = 1_200;
        let rules = ["even", "odd"];
        let rule = |i: u32| rules[i as usize % 2];
        let key = |i: u32| {
            Key::of_address(
                Address::new((0x0a00_0000 + i).to_be_bytes().into(), 64),
                rule(i),
            )
        };
        for i in 0..BLOCKS {
            // In no order, and many of them at one moment.
            let lifts = HOUR + u64::from(i * 7 % BLOCKS / 5) * SECOND;
            self.note(rule(i), key(i), lifts, &i.to_string()).await;
        }
        let (mut seen, mut cursor, mut pages) = (Vec::new(), None::<String>, 0);
        loop {
            let mut query = BlockQuery::new(&rules).with_limit(97);
            if let Some(cursor) = &cursor {
                query = query.after(cursor);
            }
            let page = self.ledger.blocks(&query).await.expect("a page");
            pages += 1;
            if pages == 3 {
                // What was seen goes, what was not comes, before and behind the cursor.
                self.ledger.drop_notes(&page.blocks).await.expect("dropped");
                for i in 0..40 {
                    let lifts = if i % 2 == 0 { MINUTE } else { 3 * HOUR };
                    self.note(rule(i), key(BLOCKS + i), lifts, &(BLOCKS + i).to_string())
                        .await;
                }
            }
            seen.extend(page.blocks);
            cursor = page.next;
            if cursor.is_none() {
                break;
            }
        }
        let in_order = (seen.windows(2)).all(|two| two[0].lifts_at <= two[1].lifts_at);
        assert!(in_order);
        let numbers: Vec<u32> = (seen.iter())
            .map(|block| block.text.parse().expect("a number"))
            .collect();
        let distinct: HashSet<_> = numbers.iter().copied().collect();
        assert_eq!(distinct.len(), numbers.len(), "nothing comes twice");
        let missed: Vec<_> = (0..BLOCKS).filter(|i| !distinct.contains(i)).collect();
        assert!(missed.is_empty(), "{missed:?} were missed");
        let came = (BLOCKS..BLOCKS + 40).filter(|i| distinct.contains(i));
        assert_eq!(came.count(), 20, "those behind the cursor");
        assert!(pages > 12, "{pages} pages");
    }

    async fn blocks_that_lift_at_one_moment_are_paged_by_name(&self) {
        let key = |i: u32| {
            Key::of_address(
                Address::new((0x0b00_0000 + i).to_be_bytes().into(), 64),
                "tied",
            )
        };
        for i in 0..300 {
            self.note("tied", key(i), u64::MAX, &i.to_string()).await;
        }
        let query = BlockQuery::new(&["tied"]).with_limit(7);
        let texts = self.texts(query).await;
        assert_eq!(texts.len(), 300);
        assert_eq!(texts.iter().collect::<HashSet<_>>().len(), 300);
        // A cursor whose own entry is gone still leads on.
        let first = self.ledger.blocks(&query).await.expect("a page");
        self.ledger
            .drop_notes(&first.blocks)
            .await
            .expect("dropped");
        let cursor = first.next.expect("more");
        let second = self.ledger.blocks(&query.after(&cursor)).await;
        let second = second.expect("a page").blocks;
        let second: Vec<_> = second.into_iter().map(|block| block.text).collect();
        assert_eq!(second, texts[7..14]);
    }

    async fn bad_cursors_and_names_are_errors_that_tell_so(&self) {
        let query = BlockQuery::new(&["order"]);
        for cursor in [
            "",
            "1",
            "AQ",
            "../../etc",
            "AQAAAAAAAAAA\n",
            &"A".repeat(5_000),
        ] {
            let page = self.ledger.blocks(&query.after(cursor)).await;
            let error = page.expect_err("no cursor");
            assert_eq!(error.kind(), StoreErrorKind::InvalidInput);
            assert!(error.to_string().contains("cursor"), "{error}");
        }
        let limit = three();
        for name in [
            "x",
            "other:{192.0.2.1}:address",
            "login:{x}:address",
            "login:unblocked",
        ] {
            let name: CounterName = name.parse().expect("a text");
            for error in [
                self.ledger.inspect(&[(&name, &limit)]).await.map(drop),
                self.ledger.clear(&[(&name, &limit)]).await.map(drop),
                self.ledger
                    .note(&BlockNote::new(&name, "order", Period::hours(1)))
                    .await,
            ] {
                let error = error.expect_err("no name");
                assert_eq!(error.kind(), StoreErrorKind::InvalidInput, "{name}");
                assert!(error.to_string().contains("name of a counter"), "{error}");
            }
        }
        assert!("".parse::<CounterName>().is_err());
    }

    async fn an_entry_that_was_renewed_is_not_dropped(&self) {
        let key = Key::of_subject("renewed", b"alice");
        self.note("renewed", key, HOUR, "first").await;
        let query = BlockQuery::new(&["renewed"]);
        let stale = self.list(query).await;
        // A new block begins while an operator looks at the old one.
        self.pass(MINUTE);
        self.note("renewed", key, HOUR, "second").await;
        self.ledger.drop_notes(&stale).await.expect("dropped");
        assert_eq!(self.texts(query).await, ["second"]);
        assert_eq!(self.texts(query.of_subject(b"alice")).await, ["second"]);
        let fresh = self.list(query).await;
        self.ledger.drop_notes(&fresh).await.expect("dropped");
        assert!(self.list(query).await.is_empty());
    }

    async fn attempts_are_shown_as_they_are(&self) {
        let limit = three();
        let key = Key::of_address(address("203.0.113.1"), "shown").and_subject(b"victim");
        let slot = Slot::new(key, &limit);
        let (name, began) = (self.ledger.name(&key), self.now());
        let empty = self.ledger.inspect(&[(&name, &limit)]).await;
        let empty = &empty.expect("contents")[0];
        assert_eq!((empty.standing.usage, empty.attempts.len()), (0, 0));

        let first = self.fail(slot).await;
        self.pass(MINUTE);
        let second = self.fail(slot.spelled(b"Victim")).await;
        self.pass(MINUTE);
        let third = Token::new();
        let lease = Duration::from_secs(30);
        let reserved = self.store.reserve(third, lease, &[slot]).await;
        assert!(reserved.expect("a reply").admitted());

        let contents = self.ledger.inspect(&[(&name, &limit)]).await;
        let contents = &contents.expect("contents")[0];
        assert_eq!(contents.now, self.now());
        assert_eq!((contents.standing.usage, contents.kept), (3, 3));
        assert_eq!(contents.standing.state, State::Busy);
        let shown: Vec<_> = (contents.attempts.iter())
            .map(|a| (a.id, a.at, a.is_in_flight, a.is_normal_form))
            .collect();
        let expected = [
            (
                AttemptId::of(third),
                began + 2 * MINUTE + 30 * SECOND,
                true,
                true,
            ),
            (AttemptId::of(second), began + MINUTE, false, false),
            (AttemptId::of(first), began, false, true),
        ];
        assert_eq!(shown, expected);
        assert!(contents.summary.is_none());

        let failed = self
            .store
            .settle(&[third], Settlement::Failed, &[slot], Duration::ZERO);
        failed.await.expect("settled");

        // In flight in another spelling, and beyond the lease.
        let pending = Key::of_address(address("203.0.113.1"), "shown").and_subject(b"pending");
        let spelled = [Slot::new(pending, &limit).spelled(b"Pending")];
        let (token, pending) = (Token::new(), self.ledger.name(&pending));
        let reserved = self.store.reserve(token, lease, &spelled).await;
        assert!(reserved.expect("a reply").admitted());
        let ends = self.now() + 30 * SECOND;
        for is_in_flight in [true, false] {
            let contents = self.ledger.inspect(&[(&pending, &limit)]).await;
            let shown = &contents.expect("contents")[0].attempts[0];
            assert_eq!((shown.id, shown.at), (AttemptId::of(token), ends));
            assert_eq!(shown.is_in_flight, is_in_flight);
            assert!(!shown.is_normal_form);
            self.clock.set(ends);
        }
        self.clock.set(ends - 30 * SECOND);

        // Several at once, each under its own limit.
        let wider = Limit::attempts(9).within(Period::hours(1)).build();
        let wider = wider.expect("a limit");
        let both = [(&name, &limit), (&name, &wider)];
        let both = self.ledger.inspect(&both).await.expect("contents");
        let lifts = Period::hours(2);
        assert_eq!(both[0].standing.state, State::Blocked { lifts });
        assert_eq!(both[1].standing.state, State::Clear);
        assert_eq!(
            both[0].standing,
            self.store.check(&[slot]).await.expect("a reply")[0]
        );
        assert!(self.ledger.inspect(&[]).await.expect("nothing").is_empty());

        // More than are returned.
        let many = Limit::attempts(2_000).within(Period::hours(1)).build();
        let many = many.expect("a limit");
        let key = Key::of_subject("shown", b"many");
        for _ in 0..1_100 {
            let slots = [Slot::new(key, &many)];
            let token = [Token::new()];
            let recorded = self
                .store
                .settle(&token, Settlement::Recorded, &slots, Duration::ZERO);
            recorded.await.expect("recorded");
        }
        let name = self.ledger.name(&key);
        let contents = self.ledger.inspect(&[(&name, &many)]).await;
        let contents = &contents.expect("contents")[0];
        assert_eq!((contents.attempts.len(), contents.kept), (1_000, 1_100));
    }

    async fn summaries_are_shown_as_they_count(&self) {
        let bucket = Limit::attempts(20)
            .within(Period::hours(20))
            .as_token_bucket()
            .without_block()
            .build();
        let counter = Limit::attempts(20)
            .within(Period::hours(1))
            .as_sliding_counter()
            .without_block()
            .build();
        let limits = [bucket, counter].map(|limit| limit.expect("a limit"));
        for (kind, limit) in ["bucket", "counter"].into_iter().zip(&limits) {
            let key = Key::of_subject(kind, b"summed");
            // From the start of a window, so that all are in one.
            self.pass(HOUR - (self.now() % HOUR));
            for i in 0..12 {
                let slot = Slot::new(key, limit);
                // One of them is of another spelling, and is summed up.
                let slot = if i == 2 {
                    slot.spelled(b"Summed")
                } else {
                    slot
                };
                self.fail(slot).await;
            }
            let name = self.ledger.name(&key);
            let contents = self.ledger.inspect(&[(&name, limit)]).await;
            let contents = &contents.expect("contents")[0];
            assert_eq!((contents.kept, contents.standing.usage), (8, 12), "{kind}");
            let summary = contents.summary.expect("a summary");
            assert_eq!(summary.thousandths, 4_000, "{kind}");
            assert_eq!(summary.last_block, None);
            assert!(!summary.is_normal_form);

            // Under a limit of another kind it does not matter.
            let other = three();
            let contents = self.ledger.inspect(&[(&name, &other)]).await;
            assert_eq!(contents.expect("contents")[0].summary, None);
        }

        let growing = Limit::attempts(1).within(Period::hours(1));
        let growing = growing
            .blocked_for(Period::minutes(1))
            .then_for(Period::minutes(10))
            .again_within(Period::hours(5));
        let growing = growing.build().expect("a limit");
        let key = Key::of_subject("growing", b"summed");
        let began = self.now();
        self.fail(Slot::new(key, &growing)).await;
        self.pass(MINUTE);
        self.fail(Slot::new(key, &growing)).await;
        let name = self.ledger.name(&key);
        let contents = self.ledger.inspect(&[(&name, &growing)]).await;
        let contents = &contents.expect("contents")[0];
        let block = contents.summary.expect("a summary").last_block;
        let block = block.expect("a block");
        assert_eq!((block.nth, block.began), (1, began));
        let lifts = Period::minutes(10);
        assert_eq!(contents.standing.state, State::Blocked { lifts });
    }

    async fn an_attempt_whose_spelling_is_not_known_yet_is_listed(&self) {
        let limit = three();
        let key = Key::of_address(address("203.0.113.10"), "pending").and_subject(b"victim");
        let slot = Slot::new(key, &limit).spelled(b"Victim");
        let (token, lease) = (Token::new(), Duration::from_secs(30));
        let reserved = self.store.reserve(token, lease, &[slot]);
        reserved.await.expect("a reply");
        let name = self.ledger.name(&key);
        let contents = self.ledger.inspect(&[(&name, &limit)]).await;
        let [attempt] = &contents.expect("contents")[0].attempts[..] else {
            panic!("not one attempt");
        };
        assert_eq!(attempt.id, AttemptId::of(token));
        assert_eq!(attempt.at, self.now() + 30_000);
        assert!(attempt.is_in_flight && !attempt.is_normal_form);
    }

    async fn clearing_removes_failures_of_every_spelling_and_nothing_in_flight(&self) {
        let limit = three();
        let here = address("203.0.113.9");
        let [mine, other] = [&b"victim"[..], b"other"]
            .map(|user| Key::of_address(here, "cleared").and_subject(user));
        let wide = Limit::attempts(50).within(Period::hours(1)).build();
        let wide = wide.expect("a limit");
        let shared = Slot::new(Key::of_address(here, "cleared"), &wide);
        let in_flight = Token::new();
        let lease = Duration::from_secs(3_000);
        let both = [Slot::new(mine, &wide), shared];
        self.store
            .reserve(in_flight, lease, &both)
            .await
            .expect("a reply");
        for spelling in [None, Some(&b"Victim"[..]), None] {
            for key in [mine, other] {
                let mut slot = Slot::new(key, &limit);
                slot.spelling = spelling;
                let (token, slots) = ([Token::new()], [slot, shared]);
                let recorded =
                    self.store
                        .settle(&token, Settlement::Recorded, &slots, Duration::ZERO);
                recorded.await.expect("recorded");
            }
        }
        let names = [mine, other].map(|key| self.ledger.name(&key));
        let unknown = self.ledger.name(&Key::of_address(here, "unknown"));
        let cleared = [(&names[0], &limit), (&unknown, &limit)];
        let cleared = self.ledger.clear(&cleared).await.expect("cleared");
        assert_eq!(cleared, [true, false]);
        let left = [(&names[0], &limit), (&names[1], &limit)];
        let left = self.ledger.inspect(&left).await.expect("contents");
        let ids: Vec<_> = left[0].attempts.iter().map(|attempt| attempt.id).collect();
        assert_eq!(ids, [AttemptId::of(in_flight)]);
        assert!(
            left[1].standing.is_blocked(),
            "another user's failures stay"
        );
        let shared = self.store.check(&[shared]).await.expect("a reply");
        assert_eq!(shared[0].usage, 7, "other counters stay as they are");
        let again = self.ledger.clear(&[(&names[0], &limit)]).await;
        assert_eq!(again.expect("cleared"), [false]);
        assert!(self.ledger.clear(&[]).await.expect("nothing").is_empty());
    }

    async fn clearing_a_bucket_fills_it(&self) {
        let bucket = Limit::attempts(10)
            .within(Period::hours(10))
            .as_token_bucket();
        let bucket = bucket
            .blocked_for(Period::hours(20))
            .build()
            .expect("a limit");
        let key = Key::of_subject("cleared-bucket", b"user");
        for _ in 0..10 {
            self.fail(Slot::new(key, &bucket)).await;
        }
        let name = self.ledger.name(&key);
        let cleared = self.ledger.clear(&[(&name, &bucket)]).await;
        assert_eq!(cleared.expect("cleared"), [true]);
        let contents = self.ledger.inspect(&[(&name, &bucket)]).await;
        let contents = &contents.expect("contents")[0];
        assert_eq!((contents.kept, contents.standing.usage), (0, 0));
        assert_eq!(contents.summary, None);
    }

    async fn known_addresses_are_forgotten(&self) {
        let (key, keep) = (
            Key::of_subject("homes", b"alice"),
            KnownAddresses::default(),
        );
        let homes = ["192.0.2.1", "192.0.2.2", "2001:db8:1:2::/64"].map(address);
        for home in homes {
            self.pass(1);
            self.store.remember(&key, home, keep).await.expect("known");
        }
        let elsewhere = Some(address("192.0.2.9"));
        assert_eq!(self.ledger.forget(&key, elsewhere).await.expect("none"), 0);
        let one = self.ledger.forget(&key, Some(homes[1])).await;
        assert_eq!(one.expect("forgotten"), 1);
        let known = self.store.known(&key, keep).await.expect("addresses");
        assert_eq!(known, [homes[2], homes[0]]);
        assert_eq!(self.ledger.forget(&key, None).await.expect("forgotten"), 2);
        assert!(self.store.known(&key, keep).await.expect("none").is_empty());
        assert_eq!(self.ledger.forget(&key, None).await.expect("none"), 0);
        self.store
            .remember(&key, homes[0], keep)
            .await
            .expect("known");
        let known = self.store.known(&key, keep).await.expect("addresses");
        assert_eq!(known, [homes[0]]);
    }

    async fn documents_are_replaced_by_compare_and_set(&self) {
        let ledger = &self.ledger;
        assert_eq!(ledger.document().await.expect("a reply"), None);
        assert_eq!(ledger.document_version().await.expect("a reply"), 0);
        assert_eq!(ledger.past_documents().await.expect("a reply"), []);
        let too_soon = ledger.replace_document(3, "x").await.expect("a reply");
        assert_eq!(too_soon, Err(None));

        let mut announced = ledger.announcements();
        let text = "[rules]\nä \0 \"quoted\"";
        let first = ledger.replace_document(0, text).await.expect("a reply");
        assert_eq!(first, Ok(1));
        assert!(announced.changed().await);
        let document = Document::new(1, text);
        assert_eq!(
            ledger.document().await.expect("a reply"),
            Some(document.clone())
        );
        assert_eq!(ledger.document_version().await.expect("a reply"), 1);

        let conflict = ledger.replace_document(0, "late").await.expect("a reply");
        assert_eq!(conflict, Err(Some(document.clone())));
        let second = ledger.replace_document(1, "").await.expect("a reply");
        assert_eq!(second, Ok(2));
        let past = ledger.past_documents().await.expect("a reply");
        assert_eq!(past, [Document::new(2, ""), document.clone()]);
        assert_eq!(
            ledger.past_document(1).await.expect("a reply"),
            Some(document)
        );
        assert_eq!(ledger.past_document(3).await.expect("a reply"), None);
        assert_eq!(ledger.past_document(0).await.expect("a reply"), None);
    }

    async fn the_last_versions_are_kept(&self) {
        let first = self.ledger.document_version().await.expect("a reply");
        for version in first..first + 60 {
            let text = format!("after {version}");
            let written = self.ledger.replace_document(version, &text).await;
            assert_eq!(written.expect("a reply"), Ok(version + 1));
        }
        let newest = first + 60;
        let past = self.ledger.past_documents().await.expect("a reply");
        let versions: Vec<_> = past.iter().map(|document| document.version).collect();
        let expected: Vec<_> = (newest - 49..=newest).rev().collect();
        assert_eq!(versions, expected);
        assert_eq!(past[0].text, format!("after {}", newest - 1));
        let gone = self.ledger.past_document(newest - 50).await;
        assert_eq!(gone.expect("a reply"), None);

        // Long ones are fewer, the newest among them in any case.
        let long = "x".repeat(15 * 1024 * 1024);
        for version in newest..newest + 3 {
            let written = self.ledger.replace_document(version, &long).await;
            assert_eq!(written.expect("a reply"), Ok(version + 1));
        }
        let past = self.ledger.past_documents().await.expect("a reply");
        let versions: Vec<_> = past.iter().map(|document| document.version).collect();
        assert_eq!(versions, [newest + 3, newest + 2]);
        assert!(past.iter().all(|document| document.text == long));
    }

    async fn instances_report_until_their_time_is_over(&self) {
        let minute = Duration::from_secs(60);
        let ledger = &self.ledger;
        for (id, text) in [("b", "7"), ("a", "6"), ("a", "7")] {
            ledger
                .report_instance(id, text, minute)
                .await
                .expect("reported");
        }
        let list = async || ledger.instances().await.expect("instances");
        let both = [
            ("a".to_owned(), "7".to_owned()),
            ("b".to_owned(), "7".to_owned()),
        ];
        assert_eq!(list().await, both);
        self.pass(MINUTE / 2);
        ledger
            .report_instance("b", "8", minute)
            .await
            .expect("reported");
        self.pass(MINUTE / 2);
        assert_eq!(list().await, [("b".to_owned(), "8".to_owned())]);
        self.pass(MINUTE);
        assert_eq!(list().await, []);
    }

    async fn texts_are_bounded(&self) {
        let long = "x".repeat(4 * 1024 + 1);
        let counter = self.ledger.name(&Key::of_subject("long", b"user"));
        let note = BlockNote::new(&counter, "long", Period::hours(1)).with_text(&long);
        let longest = "x".repeat(16 * 1024 * 1024 + 1);
        let ttl = Duration::from_secs(1);
        for result in [
            self.ledger.note(&note).await,
            self.ledger.replace_document(0, &longest).await.map(drop),
            self.ledger.report_instance("", "text", ttl).await,
            self.ledger.report_instance(&long, "text", ttl).await,
            self.ledger.report_instance("id", &long, ttl).await,
        ] {
            let error = result.expect_err("too long");
            assert_eq!(error.kind(), StoreErrorKind::InvalidInput);
        }
        assert!(self.now() > START);
    }
}
