//! What can be seen from outside: capture files.

pub mod pcap_file;
