//! An echo server on tokio, and two clients that check it.

use roce::{Error, Listener, Peer, connect_async, listen};

/// Returns every message of a client, until the client disconnects.
async fn echo(peer: Peer) -> Result<(), Error> {
    while let Ok(message) = peer.receive().await {
        peer.send(&message)?.await?;
    }
    Ok(())
}

async fn serve(listener: Listener) -> Result<(), Error> {
    loop {
        tokio::spawn(echo(listener.accept_async().await?));
    }
}

async fn run() -> Result<(), Error> {
    let listener = listen("127.0.0.1:0")?;
    let address = listener.address();
    tokio::spawn(serve(listener));

    let (first, second) = (connect_async(address).await?, connect_async(address).await?);
    for (client, text) in [(&first, "one"), (&second, "two"), (&first, "three")] {
        client.send(text.as_bytes())?.await?;
        assert_eq!(client.receive().await?, text.as_bytes());
    }
    println!("every message came back");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    Ok(runtime.block_on(run())?)
}
