//! A first program: one side writes into the other's memory, over UDP on the loopback interface.

use roce::verbs::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two devices in one process, so that one program shows both ends.
    let near = Context::open("udp:127.0.0.1")?;
    let far = Context::open("udp:127.0.0.2")?;

    let (near_pd, far_pd) = (near.alloc_pd()?, far.alloc_pd()?);
    let source = near_pd.allocate(4096, Access::LOCAL_WRITE)?;
    let target = far_pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;

    let (near_cq, far_cq) = (near.create_cq(16, None)?, far.create_cq(16, None)?);
    let near_qp = near_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &near_cq))?;
    let far_qp = far_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &far_cq))?;
    near_qp.connect(&far_qp.endpoint()?, &ConnectOptions::default())?;
    far_qp.connect(&near_qp.endpoint()?, &ConnectOptions::default())?;

    source.write(0, b"hello, remote memory")?;
    let op = SendOp::Write { remote_addr: target.addr(), rkey: target.rkey() };
    near_qp.post_send(&SendWr::new(1, op, &[source.element(0..20)]))?;

    let mut done = [Wc::default(); 1];
    near_cq.wait(&mut done, None)?;
    done[0].result()?;
    let mut text = [0; 20];
    target.read(0, &mut text)?;
    println!("{}", String::from_utf8_lossy(&text));
    Ok(())
}
