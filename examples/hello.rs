//! A first program: one end writes into the memory of the other, over UDP on the loopback interface.

fn main() -> Result<(), roce::Error> {
    // Two ends in one process, so that one program shows both.
    let (near, far) = roce::loopback()?;

    near.write(near.remote(), b"hello, remote memory")?.wait()?;

    let mut text = [0; 20];
    far.memory().read(0, &mut text)?;
    println!("{}", String::from_utf8_lossy(&text));
    Ok(())
}
