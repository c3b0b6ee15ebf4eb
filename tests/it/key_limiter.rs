//! Several keys at once where they are not on one server.

use std::{sync::Arc, time::Duration};

use tower_login_rate_limit::{KeyLimiter, Limit, Period, ReserveError, store::Store};

use crate::support::{RedisCluster, closed, eventually, refused};

const CLIENT: &str = "192.0.2.1";

fn limiters(store: impl Store, mails: u32, clients: u32) -> (KeyLimiter, KeyLimiter) {
    let limit = |n| Limit::attempts(n).within(Period::hours(1)).without_block();
    let mails = KeyLimiter::new("mail", limit(mails), store).unwrap();
    let clients = mails.sibling("client", limit(clients)).unwrap();
    (mails, clients)
}

/// The node that has the counter of this limiter; there must be no other counter of its name.
fn node_of(cluster: &RedisCluster, name: &str) -> Option<usize> {
    let has = |i: &usize| {
        let keys = cluster.nodes[*i].keys();
        keys.iter().any(|(key, _)| key.contains(name))
    };
    (0..cluster.nodes.len()).find(has)
}

/// A mailbox whose counter is on another node than that of the client.
async fn mailbox_elsewhere(
    cluster: &RedisCluster,
    (mails, clients): (&KeyLimiter, &KeyLimiter),
) -> (String, usize, usize) {
    let token = clients.reserve(CLIENT).await.unwrap();
    let client = node_of(cluster, "key::client").expect("a counter");
    clients.cancel(CLIENT, token).await.unwrap();
    for i in 0.. {
        let mailbox = format!("mailbox-{i}");
        let token = mails.reserve(&mailbox).await.unwrap();
        let mail = node_of(cluster, "key::mail").expect("a counter");
        mails.cancel(&mailbox, token).await.unwrap();
        if mail != client {
            return (mailbox, mail, client);
        }
    }
    unreachable!()
}

#[tokio::test]
async fn on_a_cluster_several_keys_count_all_or_nothing() {
    let cluster = RedisCluster::start();
    let (mails, clients) = limiters(cluster.store(), 3, 4);
    let (alice, mail_node, client_node) = mailbox_elsewhere(&cluster, (&mails, &clients)).await;
    assert_ne!(mail_node, client_node);
    let usage = async || {
        let mail = mails.check(&alice).await.unwrap().usage;
        (mail, clients.check(CLIENT).await.unwrap().usage)
    };
    let mail_first = [(&mails, &*alice), (&clients, CLIENT)];
    let client_first = [(&clients, CLIENT), (&mails, &*alice)];
    for keys in [mail_first, client_first, mail_first] {
        KeyLimiter::reserve_all(keys).await.unwrap();
    }
    assert_eq!(usage().await, (3, 3));
    // The mailbox refuses: what the client's counter has admitted before is taken back.
    for keys in [client_first, mail_first, client_first] {
        assert_eq!(refused(KeyLimiter::reserve_all(keys).await).rule(), "mail");
        assert_eq!(usage().await, (3, 3));
    }
    // The client refuses: so is what its mailbox has admitted.
    let token = KeyLimiter::reserve_all([(&mails, "bob"), (&clients, CLIENT)]);
    let token = token.await.unwrap();
    for keys in [
        [(&mails, "bob"), (&clients, CLIENT)],
        [(&clients, CLIENT), (&mails, "bob")],
    ] {
        assert_eq!(
            refused(KeyLimiter::reserve_all(keys).await).rule(),
            "client"
        );
        assert_eq!(mails.check("bob").await.unwrap().usage, 1);
        assert_eq!(usage().await, (3, 4));
    }
    let bob = [(&mails, "bob"), (&clients, CLIENT)];
    assert!(KeyLimiter::cancel_all(bob, token).await.unwrap());
    assert_eq!(mails.check("bob").await.unwrap().usage, 0);
    assert_eq!(usage().await, (3, 3));
}

/// Each limit holds at every moment, and in the end each key has exactly what was admitted.
#[tokio::test(flavor = "multi_thread")]
async fn on_a_cluster_keys_that_are_asked_in_parallel_add_up() {
    let cluster = RedisCluster::start();
    let (mails, clients) = limiters(cluster.store(), 3, 20);
    let tasks: Vec<_> = (0..200)
        .map(|i| {
            let (mails, clients) = (mails.clone(), clients.clone());
            tokio::spawn(async move {
                let mailbox = format!("mailbox-{}", i % 9);
                let keys = [(&mails, &*mailbox), (&clients, CLIENT)];
                let keys = if i % 2 == 0 { keys } else { [keys[1], keys[0]] };
                match KeyLimiter::reserve_all(keys).await {
                    Ok(_) => Some(i % 9),
                    Err(ReserveError::Refused(_)) => None,
                    Err(error) => panic!("{error:?}"),
                }
            })
        })
        .collect();
    let mut admitted = [0; 9];
    for task in tasks {
        if let Some(mailbox) = task.await.unwrap() {
            admitted[mailbox] += 1;
        }
    }
    let sum = admitted.iter().sum::<u32>();
    assert!(sum > 0 && sum <= 20, "{admitted:?}");
    assert_eq!(clients.check(CLIENT).await.unwrap().usage, sum);
    for (i, admitted) in admitted.into_iter().enumerate() {
        assert!(admitted <= 3);
        let usage = mails.check(format!("mailbox-{i}")).await.unwrap().usage;
        assert_eq!(usage, admitted, "mailbox {i}");
    }
}

/// The server of the second key hangs: an error, and nothing stays counted under the first.
#[tokio::test]
async fn on_a_cluster_a_key_whose_server_hangs_leaves_nothing_counted() {
    let cluster = RedisCluster::start();
    let store = closed().with_deadline(Duration::from_millis(500));
    let store = Arc::new(store.build_with_manager(cluster.client()).unwrap());
    let (mails, clients) = limiters(Arc::clone(&store) as Arc<dyn Store>, 3, 20);
    let (alice, mail_node, _) = mailbox_elsewhere(&cluster, (&mails, &clients)).await;
    cluster.nodes[mail_node].pause();
    let reserved = KeyLimiter::reserve_all([(&clients, CLIENT), (&mails, &*alice)]).await;
    assert!(
        matches!(reserved, Err(ReserveError::Store(_))),
        "{reserved:?}"
    );
    cluster.nodes[mail_node].resume();
    eventually(|| cluster.nodes.iter().all(|node| node.keys().is_empty())).await;
    KeyLimiter::reserve_all([(&clients, CLIENT), (&mails, &*alice)])
        .await
        .unwrap();
    assert_eq!(clients.check(CLIENT).await.unwrap().usage, 1);
    assert_eq!(mails.check(&alice).await.unwrap().usage, 1);
}
