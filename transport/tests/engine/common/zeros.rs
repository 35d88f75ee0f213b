//! Large memory for tests in which the bytes do not matter.

use roce_transport::{Memory, OutOfBounds};

/// Memory of this length that holds only zeros.
#[derive(Debug)]
pub struct Zeros(pub usize);

impl Memory for Zeros {
    fn len(&self) -> usize {
        self.0
    }
    fn read(&self, _offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        out.fill(0);
        Ok(())
    }
    fn write(&self, _offset: usize, _data: &[u8]) -> Result<(), OutOfBounds> {
        Ok(())
    }
    fn compare_swap(&self, _offset: usize, _compare: u64, _swap: u64) -> Result<u64, OutOfBounds> {
        Ok(0)
    }
    fn fetch_add(&self, _offset: usize, _add: u64) -> Result<u64, OutOfBounds> {
        Ok(0)
    }
    fn store(&self, _offset: usize, _bytes: [u8; 8]) -> Result<(), OutOfBounds> {
        Ok(())
    }
}
