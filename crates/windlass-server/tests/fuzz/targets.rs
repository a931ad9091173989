//! Targets of HTTP jobs: URLs, hosts of secrets, address ranges.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use windlass_http::{Cidr, Guard, HostPattern, HttpRequest, SecretHosts};

use crate::{fuzz, named};

#[test]
fn http_targets() {
    let words = [
        "https://",
        "http://",
        "127.0.0.1",
        "[::1]",
        "[::ffff:10.0.0.1]",
        "0x7f.1",
        "2130706433",
        "localhost",
        "user:pass@",
        "@",
        "#",
        "?",
        "%00",
        "%2e",
        "..",
        "\\\\",
        "xn--",
        "。",
        ":0",
        ":65536",
        "\\r\\n",
        "\"url\"",
        "\"method\"",
        "\"headers\"",
        "\"body\"",
        "\"sign\"",
        "\"async\"",
        "\"permanent_statuses\"",
        "\"GET\"",
        "\"Host\"",
        "\"Content-Length\"",
    ];
    fuzz("targets")
        .tokens(&words)
        .inputs(30_000)
        .run_text(target);
}

fn target(text: &str) -> String {
    let request = match HttpRequest::from_json(text) {
        Ok(request) => request,
        Err(invalid) => return named(&invalid),
    };
    let url = request.url.to_string();
    assert!(url.is_ascii() && !url.contains(['\\', '#', ' ']), "{url}");
    assert!(["http", "https"].contains(&request.url.scheme_str().unwrap_or_default()));
    let host = request.url.host().unwrap_or_default();
    assert!(!host.is_empty(), "{url}");
    let authority = request.url.authority().unwrap().as_str();
    assert!(!authority.contains('@'), "{url} has a user");
    // What is dialled stays the same when it is read again.
    let again = HttpRequest::from_json(&serde_json::json!({ "url": url }).to_string());
    assert_eq!(again.map(|again| again.url).as_ref(), Ok(&request.url));
    for name in request.headers.keys() {
        assert!(!["host", "content-length", "transfer-encoding"].contains(&name.as_str()));
    }
    let is_address = host.starts_with('[') || host.parse::<Ipv4Addr>().is_ok();
    format!("{} {is_address} {}", request.method, request.headers.len())
}

#[test]
fn hosts_of_secrets_and_address_ranges() {
    let words = [
        "*.",
        "a.example",
        ":443",
        ":0",
        "[::1]",
        "[fd00::]",
        "/8",
        "/32",
        "/128",
        "/0",
        "10.0.0.0",
        "169.254.169.254",
        "::ffff:",
        "64:ff9b::",
        "xn--",
        "%",
    ];
    fuzz("hosts")
        .tokens(&words)
        .inputs(60_000)
        .run_text(|text| {
            let mut seen = match text.parse::<HostPattern>() {
                Ok(pattern) => {
                    let written = pattern.to_string();
                    assert_eq!(written.parse().as_ref(), Ok(&pattern), "{written}");
                    let hosts = SecretHosts::parse(&[text]).unwrap();
                    format!("host {:?} ", hosts.names().map(|names| names.len()))
                }
                Err(invalid) => named(&invalid),
            };
            match text.parse::<Cidr>() {
                Ok(range) => {
                    let written = range.to_string();
                    assert_eq!(written.parse(), Ok(range), "{written}");
                    seen += "range";
                }
                Err(invalid) => seen += &named(&invalid),
            }
            seen
        });
}

#[test]
fn no_spelling_of_a_closed_address_is_allowed() {
    fuzz("addresses").inputs(60_000).run(|input| {
        let mut octets = [0; 16];
        for (octet, byte) in octets.iter_mut().zip(input) {
            *octet = *byte;
        }
        let [a, b, c, d, ..] = octets;
        let (guard, v4) = (Guard::default(), Ipv4Addr::new(a, b, c, d));
        let allowed = guard.allows(v4.into());
        assert!(
            !allowed || !(v4.is_private() || v4.is_loopback() || v4.is_link_local()),
            "{v4} is allowed"
        );
        let [high, low] = [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])];
        for v6 in [
            v4.to_ipv6_mapped(),
            Ipv6Addr::new(0, 0, 0, 0, 0, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low),
            Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
            Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
            Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, !high, !low),
        ] {
            assert!(allowed || !guard.allows(v6.into()), "{v6} reaches {v4}");
        }
        let v6 = Ipv6Addr::from(octets);
        let is_local = v6.is_loopback() || v6.is_unspecified() || v6.is_multicast();
        let is_local = is_local || v6.is_unique_local() || v6.is_unicast_link_local();
        assert!(
            !is_local || !guard.allows(IpAddr::V6(v6)),
            "{v6} is allowed"
        );
        format!("{allowed} {is_local} {}", a / 16)
    });
}
