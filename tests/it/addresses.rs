//! Where a request comes from: what can be forged, and what is refused.

use std::net::{IpAddr, Ipv6Addr};

use http::{Request, StatusCode, request::Parts};
use proptest::prelude::*;
use tower_login_rate_limit::{
    LoginLimiter, Outcome, Policy, Rule,
    extract::{ExtractAddress, ForwardedAddress, PeerAddressExtension},
    store::MemoryStore,
};

use crate::support::{
    BothStores, attempt, ip,
    server::{LoginServer, WRONG, client},
};

const PROXY: &str = "10.0.0.1";

fn parts(peer: &str, headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder();
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut request = request.body(()).expect("a request");
    let peer = PeerAddressExtension((ip(peer), 5000).into());
    request.extensions_mut().insert(peer);
    request.into_parts().0
}

/// The address, or "refused".
fn found(extractor: &ForwardedAddress, peer: &str, headers: &[(&str, &str)]) -> String {
    match extractor.extract_address(&parts(peer, headers)) {
        Ok(address) => address.to_string(),
        Err(_) => "refused".to_owned(),
    }
}

#[test]
fn x_forwarded_for_is_walked_from_the_right() {
    let extractor =
        ForwardedAddress::x_forwarded_for(["10.0.0.0/8", "2001:db8:ffff::/48"]).unwrap();
    for (lines, expected) in [
        (vec!["203.0.113.7"], "203.0.113.7"),
        (vec!["6.6.6.6, 203.0.113.7"], "203.0.113.7"),
        (vec!["6.6.6.6", "203.0.113.7"], "203.0.113.7"),
        (vec!["203.0.113.7, 10.0.0.9"], "203.0.113.7"),
        (vec!["203.0.113.7", "10.0.0.9, 10.0.0.8"], "203.0.113.7"),
        (vec!["203.0.113.7:4711"], "203.0.113.7"),
        (vec!["2001:db8::7"], "2001:db8::7"),
        (vec!["[2001:db8::7]"], "2001:db8::7"),
        (vec!["[2001:db8::7]:4711"], "2001:db8::7"),
        (vec!["::ffff:203.0.113.7"], "203.0.113.7"),
        (vec!["203.0.113.7, ::ffff:10.0.0.9"], "203.0.113.7"),
        (
            vec!["6.6.6.6, 203.0.113.7, 2001:db8:ffff::1"],
            "203.0.113.7",
        ),
        (vec![" 203.0.113.7 , "], "203.0.113.7"),
        // What the client put to the left of that need not be readable.
        (vec!["<script>, 203.0.113.7"], "203.0.113.7"),
        // From inside the proxies' own network.
        (vec!["10.1.2.3, 10.0.0.9"], "10.1.2.3"),
        // Nobody knows.
        (vec![], "refused"),
        (vec![""], "refused"),
        (vec!["unknown"], "refused"),
        (vec!["203.0.113.7, garbage"], "refused"),
        (vec!["203.0.113.7, 10.0.0.9:x"], "refused"),
        (vec!["203.0.113.7, fe80::1%eth0"], "refused"),
    ] {
        let headers: Vec<_> = lines
            .iter()
            .map(|line| ("x-forwarded-for", *line))
            .collect();
        assert_eq!(found(&extractor, PROXY, &headers), expected, "{lines:?}");
    }
}

#[test]
fn a_peer_that_is_no_proxy_counts_by_its_own_address() {
    let extractor = ForwardedAddress::x_forwarded_for(["10.0.0.0/8"]).unwrap();
    for peer in ["203.0.113.9", "2001:db8::9", "11.0.0.1"] {
        let headers = [("x-forwarded-for", "6.6.6.6"), ("forwarded", "for=6.6.6.6")];
        assert_eq!(found(&extractor, peer, &headers), peer);
    }
    let mapped = [("x-forwarded-for", "6.6.6.6")];
    assert_eq!(found(&extractor, "::ffff:10.0.0.1", &mapped), "6.6.6.6");
    assert_eq!(
        found(&extractor, "::ffff:203.0.113.9", &mapped),
        "203.0.113.9"
    );
}

#[test]
fn forwarded_is_read_with_its_quotes() {
    let extractor = ForwardedAddress::forwarded(["10.0.0.0/8"]).unwrap();
    for (lines, expected) in [
        (vec!["for=203.0.113.7"], "203.0.113.7"),
        (vec!["For=\"203.0.113.7:4711\";proto=https"], "203.0.113.7"),
        (
            vec!["proto=https; for=\"[2001:db8::7]:4711\""],
            "2001:db8::7",
        ),
        (
            vec!["for=6.6.6.6, for=203.0.113.7;by=10.0.0.9"],
            "203.0.113.7",
        ),
        (
            vec!["for=6.6.6.6", "for=203.0.113.7", "for=10.0.0.9"],
            "203.0.113.7",
        ),
        (
            vec!["for=6.6.6.6;x=\"a,b\", for=203.0.113.7"],
            "203.0.113.7",
        ),
        // A quote that the client left open must not swallow what the proxy added.
        (vec!["for=6.6.6.6;x=\", for=203.0.113.7"], "refused"),
        (vec!["for=6.6.6.6;x=\"", "for=203.0.113.7"], "203.0.113.7"),
        (vec!["for=6.6.6.6;for=203.0.113.7"], "refused"),
        (vec!["for=unknown"], "refused"),
        (vec!["for=_hidden"], "refused"),
        (vec!["proto=https"], "refused"),
        (vec![], "refused"),
    ] {
        let headers: Vec<_> = lines.iter().map(|line| ("forwarded", *line)).collect();
        assert_eq!(found(&extractor, PROXY, &headers), expected, "{lines:?}");
    }
}

#[test]
fn a_single_value_is_there_once() {
    let extractor = ForwardedAddress::single("X-Real-IP", ["10.0.0.0/8"]).unwrap();
    let of = |values: &[&str]| {
        let headers: Vec<_> = values.iter().map(|value| ("x-real-ip", *value)).collect();
        found(&extractor, PROXY, &headers)
    };
    assert_eq!(of(&["203.0.113.7"]), "203.0.113.7");
    assert_eq!(of(&["203.0.113.7", "6.6.6.6"]), "refused");
    assert_eq!(of(&["203.0.113.7, 6.6.6.6"]), "refused");
    assert_eq!(of(&[]), "refused");
}

#[test]
fn a_setup_that_cant_work_is_refused() {
    for (error, word) in [
        (
            ForwardedAddress::x_forwarded_for(["10.0.0.0/33"]),
            "network",
        ),
        (
            ForwardedAddress::x_forwarded_for(["proxy.local"]),
            "network",
        ),
        (ForwardedAddress::x_forwarded_for::<&str>([]), "trusted"),
        (
            ForwardedAddress::single("no header", ["10.0.0.1"]),
            "header",
        ),
    ] {
        assert!(error.unwrap_err().to_string().contains(word));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 3_000, ..Default::default() })]

    /// Whatever a client sends, it counts as the address that the proxy saw, or is refused.
    #[test]
    fn no_header_of_a_client_gives_it_another_address(
        sent in proptest::collection::vec("[ -~]{0,40}", 0..3),
        forwarded in any::<bool>(),
    ) {
        let networks = ["10.0.0.0/8"];
        let (name, extractor, own) = match forwarded {
            true => ("forwarded", ForwardedAddress::forwarded(networks).unwrap(), "for=203.0.113.7"),
            false => ("x-forwarded-for", ForwardedAddress::x_forwarded_for(networks).unwrap(), "203.0.113.7"),
        };
        // A proxy appends to the last line, or adds one.
        let mut appended = sent.clone();
        match appended.last_mut() {
            Some(last) => *last = format!("{last}, {own}"),
            None => appended.push(own.to_owned()),
        }
        let mut added = sent;
        added.push(own.to_owned());
        for lines in [appended, added] {
            let headers: Vec<_> = lines.iter().map(|line| (name, line.as_str())).collect();
            let found = found(&extractor, PROXY, &headers);
            prop_assert!(found == "203.0.113.7" || found == "refused", "{:?}: {}", lines, found);
        }
    }

    #[test]
    fn no_header_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let Ok(value) = http::HeaderValue::from_bytes(&bytes) else {
            return Ok(());
        };
        let mut parts = parts(PROXY, &[]);
        parts.headers.insert("x-forwarded-for", value.clone());
        parts.headers.insert("forwarded", value);
        let _ = ForwardedAddress::x_forwarded_for(["10.0.0.0/8"]).unwrap().extract_address(&parts);
        let _ = ForwardedAddress::forwarded(["10.0.0.0/8"]).unwrap().extract_address(&parts);
    }
}

#[tokio::test]
async fn a_thousand_forged_headers_are_one_client() {
    let limiter = || LoginLimiter::new(Policy::default(), MemoryStore::new());
    let behind = ForwardedAddress::x_forwarded_for(["127.0.0.0/8"]).unwrap();
    let direct = ForwardedAddress::x_forwarded_for(["10.0.0.0/8"]).unwrap();
    for (extractor, appended, counted) in [
        (behind, ", 203.0.113.7", "203.0.113.7"),
        (direct, "", "127.0.0.1"),
    ] {
        let server =
            LoginServer::start_with(limiter(), |layer| layer.with_address(extractor)).await;
        let client = client();
        let mut admitted = 0;
        for i in 0..1_000_u32 {
            let forged = IpAddr::from(i.wrapping_mul(2_654_435_761).to_be_bytes());
            let response = client
                .post(server.url())
                .header("x-forwarded-for", format!("{forged}{appended}"))
                .header("x-real-ip", forged.to_string())
                .header("forwarded", format!("for={forged}"))
                .json(&serde_json::json!({"username": "victim", "password": WRONG.0}))
                .send()
                .await
                .unwrap();
            admitted += u32::from(response.status() == StatusCode::UNAUTHORIZED);
        }
        assert_eq!((admitted, server.handled.count()), (5, 5));
        let report = server.limiter.check(ip(counted)).await.unwrap();
        assert_eq!(report.rule(Rule::ADDRESS).unwrap().usage, 5);
    }
}

#[tokio::test]
async fn a_proxy_without_the_header_is_refused_and_counted_nowhere() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let extractor = ForwardedAddress::x_forwarded_for(["127.0.0.0/8"]).unwrap();
    let server = LoginServer::start_with(limiter, |layer| layer.with_address(extractor)).await;
    let response = server.post("user", WRONG).await;
    assert_eq!(response.status(), 500);
    assert!(!response.text().await.unwrap().contains("proxy"));
    assert_eq!(
        (server.handled.count(), server.usage("user").await),
        (0, (0, 0))
    );
}

/// Tunnel brokers give networks of 48 bits away: 65,536 of those that count as one address.
#[tokio::test]
async fn a_network_of_48_bits_is_not_65536_budgets() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        let guess = async |network: u32| {
            let ip = Ipv6Addr::new(0x2001, 0xdb8, 1, network as u16, 0, 0, 0, 1);
            attempt(&limiter, ip.into(), "victim", Outcome::Failure)
                .await
                .is_ok()
        };
        let mut guesses = 0;
        for network in 0..1_000 {
            // Far apart, so that each is in another network of 56 bits for as long as possible.
            guesses += u32::from(guess(network * 257 % 65_536).await);
        }
        assert_eq!(guesses, 400, "{name}");
        // A neighbor in another network of 48 bits is not affected.
        let neighbor = Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1);
        let neighbor = attempt(&limiter, neighbor.into(), "victim", Outcome::Failure).await;
        assert!(neighbor.is_ok(), "{name}");
    }
}

/// A household has a network of 56 bits: 256 of those that count as one address.
#[tokio::test]
async fn a_network_of_56_bits_is_not_256_budgets() {
    let both = BothStores::start().await;
    for (name, limiter) in both.limiters(&Policy::default()) {
        let mut guesses = 0;
        for network in 0..256 {
            let ip = Ipv6Addr::new(0x2001, 0xdb8, 1, network, 0, 0, 0, 1);
            let guess = attempt(&limiter, ip.into(), "victim", Outcome::Failure).await;
            guesses += u32::from(guess.is_ok());
        }
        assert_eq!(guesses, 100, "{name}");
        // A success takes back its own failure from the networks too.
        let ip = Ipv6Addr::new(0x2001, 0xdb8, 1, 0x100, 0, 0, 0, 1).into();
        attempt(&limiter, ip, "victim", Outcome::Failure)
            .await
            .unwrap();
        attempt(&limiter, ip, "victim", Outcome::Success)
            .await
            .unwrap();
        let report = limiter.check((ip, "victim")).await.unwrap();
        assert_eq!(report.rule(Rule::NETWORK_56).unwrap().usage, 0, "{name}");
        assert_eq!(report.rule(Rule::NETWORK_48).unwrap().usage, 100, "{name}");
    }
}

/// To IPv4 the rules by network do not apply, and cost nothing.
#[tokio::test]
async fn networks_are_of_ipv6_only() {
    let limiter = LoginLimiter::new(Policy::default(), MemoryStore::new());
    let report = limiter.check((ip("192.0.2.1"), "user")).await.unwrap();
    assert_eq!(report.iter().count(), 2);
    let narrow = Policy::default().with_ipv6_prefix(56).unwrap();
    let limiter = LoginLimiter::new(narrow, MemoryStore::new());
    let report = limiter.check((ip("2001:db8::1"), "user")).await.unwrap();
    assert_eq!(report.iter().count(), 3, "address, 48 bits, pair");
}
