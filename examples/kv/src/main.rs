//! A key-value service in two tasks. Requests and answers are messages, and the client fetches a value with a
//! READ.

use std::collections::HashMap;

use roce::verbs::{MemoryRegion, RemoteMemory};
use roce::{Error, Listener, Peer, connect_async, listen};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Stores `key=value`, and answers every request with the location of the value, or with an empty message.
async fn serve(listener: Listener) -> Result<()> {
    let mut values: HashMap<String, MemoryRegion> = HashMap::new();
    let peer = listener.accept_async().await?;
    loop {
        let request = match peer.receive().await {
            Ok(request) => String::from_utf8(request)?,
            Err(Error::Disconnected { source: None }) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let (key, value) = request.split_once('=').unwrap_or((&request, ""));
        if !value.is_empty() {
            values.insert(key.to_owned(), peer.offer(value.as_bytes())?);
        }
        let place = values.get(key).map(|value| value.remote(0..value.len())).transpose()?;
        let answer = place.map(|place| place.to_bytes());
        peer.send(answer.as_ref().map_or(&[], |bytes| bytes))?.await?;
    }
}

/// Stores or fetches a value. Returns the value that the service has under the key afterwards.
async fn call(peer: &Peer, request: &str) -> Result<String> {
    peer.send(request.as_bytes())?.await?;
    let answer = peer.receive().await?;
    let Some(bytes) = answer.first_chunk() else { return Ok(String::new()) };
    Ok(String::from_utf8(peer.read(RemoteMemory::from_bytes(bytes))?.await?)?)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let listener = listen("127.0.0.4:7471")?;
    let client = async {
        let peer = connect_async("127.0.0.4:7471").await?;
        assert_eq!(call(&peer, "planet=mercury").await?, "mercury");
        assert_eq!(call(&peer, "star=sirius").await?, "sirius");
        assert_eq!(call(&peer, "planet").await?, "mercury");
        assert_eq!(call(&peer, "comet").await?, "");
        Ok(())
    };
    let (served, called) = tokio::join!(serve(listener), client);
    served.and(called).inspect(|()| println!("every value is the one that was stored"))
}
