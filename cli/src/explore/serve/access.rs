//! Who may read the page: requests with the token of the link, for the name of this machine.
//!
//! Every user and every program of this machine can connect to 127.0.0.1, and a web site can make a browser
//! do so. The token keeps them out. The name of the host matters as well: a web site whose name leads to
//! 127.0.0.1 (DNS rebinding) would otherwise have the same origin as the page.

use std::hint::black_box;
use std::io;
use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};
use roce_document::fields::hex;
use rustix::rand::{GetRandomFlags, getrandom};

/// Length of a token in bytes: too many values to try.
const TOKEN_LEN: usize = 16;

/// The secret of a link.
pub(super) struct Token(String);

impl Token {
    /// Takes random bytes of the operating system.
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; TOKEN_LEN];
        let count = getrandom(&mut bytes, GetRandomFlags::empty())?;
        if count != TOKEN_LEN {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Self(hex(&bytes)))
    }

    /// Returns the token as it is in the link.
    pub(super) fn text(&self) -> &str {
        &self.0
    }

    /// Compares a token in a time that does not depend on which of its digits are right.
    fn is(&self, given: &str) -> bool {
        let (own, given) = (self.0.as_bytes(), given.as_bytes());
        let differences = own.iter().zip(given).fold(0, |sum, (own, given)| sum | black_box(own ^ given));
        own.len() == given.len() && differences == 0
    }
}

/// Returns why a request is refused, or `None` if it may be answered.
pub(super) fn refusal(token: &Token, uri: &Uri, headers: &HeaderMap) -> Option<&'static str> {
    if !has_local_host(uri, headers) {
        return Some("this page has no other name than 127.0.0.1 or localhost; use the printed link\n");
    }
    let given = uri.query().unwrap_or_default().split('&').find_map(|part| part.strip_prefix("token="));
    if !given.is_some_and(|given| token.is(given)) {
        return Some("the token is missing or wrong; use the link that `roce explore` printed\n");
    }
    None
}

/// Returns whether a request names this machine as its host, once and without contradiction.
fn has_local_host(uri: &Uri, headers: &HeaderMap) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return false };
    host.to_str().is_ok_and(is_loopback) && uri.host().is_none_or(is_loopback)
}

/// Returns whether the value of a Host header is a loopback name, with any port: a tunnel may have another
/// one than this command.
fn is_loopback(host: &str) -> bool {
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok();
    let name = match host.rsplit_once(':') {
        // The colons of an address of IPv6 are between brackets.
        Some((name, port)) if is_port(port) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_names_are_local() {
        for name in
            ["127.0.0.1", "127.0.0.1:8080", "localhost", "LocalHost:1", "[::1]", "[::1]:65535", "127.1.2.3:9"]
        {
            assert!(is_loopback(name), "{name}");
        }
        for name in [
            "",
            ":80",
            "example.org",
            "example.org:80",
            "127.0.0.1.example.org",
            "localhost.example.org:80",
            "127.0.0.1:80:80",
            "127.0.0.1:99999",
            "192.0.2.1",
            "0.0.0.0:80",
            "[::]:80",
            "127.0.0.1@example.org",
        ] {
            assert!(!is_loopback(name), "{name}");
        }
    }

    #[test]
    fn tokens_differ_and_only_the_whole_token_is_right() {
        let (token, other) = (Token::random().unwrap(), Token::random().unwrap());
        assert_eq!(token.text().len(), 2 * TOKEN_LEN);
        assert_ne!(token.text(), other.text());
        assert!(token.is(token.text()) && !token.is(other.text()));
        let longer = format!("{}0", token.text());
        for wrong in ["", &token.text()[1..], &token.text()[..31], &longer] {
            assert!(!token.is(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_request_needs_one_local_host_and_the_token() {
        let token = Token::random().unwrap();
        let check = |uri: &str, hosts: &[&str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(header::HOST, host.parse().unwrap());
            }
            refusal(&token, &uri.parse().unwrap(), &headers)
        };
        let right = format!("/live?x=1&token={}", token.text());
        assert_eq!(check(&right, &["127.0.0.1:1"]), None);
        for hosts in [&[][..], &["example.org"], &["127.0.0.1", "127.0.0.1"], &["127.0.0.1", "example.org"]] {
            assert!(check(&right, hosts).is_some_and(|text| text.contains("no other name")), "{hosts:?}");
        }
        assert!(check(&format!("http://example.org{right}"), &["127.0.0.1"]).is_some());
        assert_eq!(check(&format!("http://localhost{right}"), &["127.0.0.1"]), None);
        for uri in ["/", "/?token=", "/?token=0123", &format!("/?Token={}", token.text())] {
            assert!(check(uri, &["localhost"]).is_some_and(|text| text.contains("token")), "{uri}");
        }
    }
}
