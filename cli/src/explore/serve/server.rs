//! The server: the page, the capture, and the live data as server-sent events.

use std::fs::File;
use std::io::{self, Read};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_core::Stream;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{broadcast, mpsc};

use super::access::{Token, refusal};

/// The data that the server serves.
pub(super) struct Site {
    pub(super) token: Token,
    pub(super) page: Bytes,
    pub(super) capture: Option<PathBuf>,
    /// The live data, each event in its form on the wire.
    pub(super) events: broadcast::Sender<Bytes>,
}

/// Bytes of a capture in one piece.
const PIECE: usize = 1 << 18;
/// Pieces of a capture that wait for a slow browser.
const WAITING_PIECES: usize = 4;

/// The headers of every answer. The page itself has a policy with the sums of its script and its style sheet,
/// which `tools/web/assemble` writes: it runs no other script and loads nothing from other servers. A browser
/// obeys both policies, so the header adds only what a page cannot say: no other page may contain it. The
/// link with its token is not passed on.
const HEADERS: [(HeaderName, &str); 5] = [
    (header::CACHE_CONTROL, "no-store"),
    (header::CONTENT_SECURITY_POLICY, "frame-ancestors 'none'"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Serves until the process ends.
pub(super) fn serve(listener: TcpListener, site: Site) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        axum::serve(listener, router(Arc::new(site))).await
    })
}

fn router(site: Arc<Site>) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/capture", get(capture))
        .route("/live", get(live))
        .fallback(nothing)
        .layer(middleware::from_fn_with_state(Arc::clone(&site), admit))
        .with_state(site)
}

/// Refuses a request, or answers it with the headers of every answer.
async fn admit(State(site): State<Arc<Site>>, request: Request, next: Next) -> Response {
    let mut response = match refusal(&site.token, request.uri(), request.headers()) {
        Some(reason) => (StatusCode::FORBIDDEN, reason).into_response(),
        None => next.run(request).await,
    };
    let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
    response.headers_mut().extend(headers);
    response
}

async fn page(State(site): State<Arc<Site>>) -> Response {
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], site.page.clone()).into_response()
}

async fn nothing() -> Response {
    (StatusCode::NOT_FOUND, "there is /, /capture and /live\n").into_response()
}

async fn capture(State(site): State<Arc<Site>>) -> Response {
    // A page asks in any case, so this is not an error.
    let Some(path) = &site.capture else { return StatusCode::NO_CONTENT.into_response() };
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (len, file) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let text = format!("cannot read {}: {error}\n", path.display());
            return (StatusCode::NOT_FOUND, text).into_response();
        }
    };
    let (sender, receiver) = mpsc::channel(WAITING_PIECES);
    // A file that grows meanwhile ends where it ended at first, as the length says.
    tokio::task::spawn_blocking(move || send(file.take(len), &sender));
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
        (header::CONTENT_LENGTH, len.to_string()),
        (header::CONTENT_DISPOSITION, format!("inline; filename*=UTF-8''{}", file_name(path))),
    ];
    (headers, Body::from_stream(Received(receiver))).into_response()
}

/// Sends a file in pieces.
fn send(mut file: impl Read, receiver: &mpsc::Sender<io::Result<Bytes>>) {
    loop {
        let mut piece = vec![0; PIECE];
        let piece = match file.read(&mut piece) {
            Ok(0) => return,
            Ok(count) => {
                piece.truncate(count);
                Ok(piece.into())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let is_last = piece.is_err();
        // The browser may have gone.
        if receiver.blocking_send(piece).is_err() || is_last {
            return;
        }
    }
}

/// Returns the name of a file for a header: letters, digits and a few signs as they are, other bytes as two
/// digits.
fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let mut text = String::with_capacity(name.len());
    for byte in name {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => text.push(char::from(*byte)),
            other => text.push_str(&format!("%{other:02X}")),
        }
    }
    text
}

async fn live(State(site): State<Arc<Site>>) -> Response {
    let mut events = site.events.subscribe();
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            match events.recv().await {
                Ok(event) => {
                    if sender.send(Ok(event)).await.is_err() {
                        return;
                    }
                }
                // A slow browser misses events.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    });
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(Received(receiver))).into_response()
}

/// The pieces of a body, as they arrive from another task.
struct Received(mpsc::Receiver<io::Result<Bytes>>);

impl Stream for Received {
    type Item = io::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_file_name_fits_a_header() {
        assert_eq!(file_name(Path::new("/a/trace-1_b.pcapng")), "trace-1_b.pcapng");
        assert_eq!(file_name(Path::new("a b\"\r\nü.pcap")), "a%20b%22%0D%0A%C3%BC.pcap");
        assert_eq!(file_name(Path::new("/")), "");
    }
}
