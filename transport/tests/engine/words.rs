//! Memory of words, at every offset.

use roce_transport::{Memory as _, OutOfBounds, WordMemory};

#[test]
fn every_offset_and_length_of_a_small_buffer() {
    let longest = if cfg!(miri) { 11 } else { 40_usize };
    for len in 0..longest {
        for offset in 0..=len {
            for count in 0..=len - offset {
                let memory = WordMemory::from_bytes(&vec![0xaa; len]);
                let data: Vec<u8> = (0..count).map(|i| i as u8 + 1).collect();
                memory.write(offset, &data).unwrap();
                let mut expected = vec![0xaa; len];
                expected[offset..offset + count].copy_from_slice(&data);
                assert_eq!(memory.to_vec(), expected, "len {len} offset {offset} count {count}");
                let mut back = vec![0; count];
                memory.read(offset, &mut back).unwrap();
                assert_eq!(back, data);
            }
        }
    }
}

#[test]
fn outside_is_refused_and_changes_nothing() {
    let memory = WordMemory::new(16);
    assert_eq!(memory.write(9, &[1; 8]), Err(OutOfBounds));
    assert_eq!(memory.write(usize::MAX, &[1; 8]), Err(OutOfBounds));
    assert_eq!(memory.read(17, &mut []), Err(OutOfBounds));
    assert_eq!(memory.fetch_add(4, 1), Err(OutOfBounds), "misaligned");
    assert_eq!(memory.fetch_add(16, 1), Err(OutOfBounds));
    assert_eq!(memory.to_vec(), [0; 16]);
}

#[test]
fn atomics_return_the_old_value() {
    let memory = WordMemory::new(16);
    assert_eq!(memory.fetch_add(8, 5), Ok(0));
    assert_eq!(memory.compare_swap(8, 4, 9), Ok(5));
    assert_eq!(memory.compare_swap(8, 5, 9), Ok(5));
    assert_eq!(memory.fetch_add(8, u64::MAX), Ok(9));
    assert_eq!(memory.fetch_add(8, 0), Ok(8));
}
