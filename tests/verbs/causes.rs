//! Errors that contain others: their sources, their texts and the names of their variants.

use std::error::Error;
use std::io;

use roce::observe::with_causes;
use roce::verbs::*;

fn refused() -> io::Error {
    io::Error::other("the cause of it all")
}

fn failed() -> VerbsError {
    VerbsError::Io { what: "cannot create an eventfd", error: refused() }
}

fn no_device() -> OpenError {
    let (spec, step) = ("udp:127.0.0.1".to_owned(), "open a socket");
    OpenError::System { spec, step, error: refused() }
}

fn no_privilege() -> OpenError {
    let (spec, step) = ("raw:eth0".to_owned(), "open a packet socket");
    OpenError::Privilege { spec, step, privilege: "CAP_NET_RAW", error: refused() }
}

/// Checks that `Debug` shows the variant, and that a report of the whole chain contains no text twice.
#[track_caller]
fn check(error: &dyn Error, variant: &str) {
    let debug = format!("{error:?}");
    assert!(debug.starts_with(variant), "{debug}");
    let mut texts = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        assert!(texts.iter().all(|outer| !outer.contains(&text)), "{texts:?} repeats `{text}`");
        texts.push(text);
        source = cause.source();
    }
    assert_eq!(with_causes(error).to_string(), texts.join(": "));
}

#[test]
fn errors_that_wrap_another_have_it_as_their_source() {
    let (position, error) = (3, PostError::UnknownQp);
    let errors: [(&str, Box<dyn Error>); 14] = [
        ("Io", Box::new(failed())),
        ("Pd", Box::new(VerbsError::from(PdError::Unknown))),
        ("Register", Box::new(VerbsError::from(RegisterError::Empty))),
        ("Key", Box::new(VerbsError::from(KeyError::Unknown))),
        ("Cq", Box::new(VerbsError::from(CqError::Unknown))),
        ("Srq", Box::new(VerbsError::from(SrqError::Unknown))),
        ("CreateQp", Box::new(VerbsError::from(CreateQpError::UnknownCq))),
        ("ModifyQp", Box::new(VerbsError::from(ModifyQpError::UnknownQp))),
        ("Post", Box::new(VerbsError::from(PostError::UnknownQp))),
        ("PostList", Box::new(VerbsError::PostList { position, error })),
        ("Io", Box::new(WaitError::Io(refused()))),
        ("System", Box::new(no_device())),
        ("Privilege", Box::new(no_privilege())),
        ("Pd", Box::new(XrcdError::from(PdError::TooMany { limit: 2 }))),
    ];
    for (variant, error) in errors {
        check(&*error, variant);
        let source = error.source().unwrap_or_else(|| panic!("{variant} has no source"));
        assert!(!error.to_string().contains(&source.to_string()), "{error}");
    }
    let text = with_causes(&failed()).to_string();
    assert_eq!(text, "cannot create an eventfd: the cause of it all");
}

#[test]
fn errors_that_add_nothing_have_the_text_and_the_source_of_the_inner_one() {
    let (xrcd, limit) = (|| XrcdError::from(CqError::Unknown), 2);
    type Pair = (&'static str, Box<dyn Error>, Box<dyn Error>);
    let errors: [Pair; 8] = [
        ("Open", Box::new(VerbsError::from(no_device())), Box::new(no_device())),
        ("Xrcd", Box::new(VerbsError::from(xrcd())), Box::new(xrcd())),
        ("Destroy", Box::new(VerbsError::from(DestroyError::UnknownQp)), Box::new(DestroyError::UnknownQp)),
        ("Key", Box::new(DestroyError::Key(KeyError::Unknown)), Box::new(KeyError::Unknown)),
        ("Verbs", Box::new(WaitError::from(failed())), Box::new(failed())),
        ("Verbs", Box::new(ConnectionError::from(failed())), Box::new(failed())),
        (
            "Manager",
            Box::new(ConnectionError::from(CmError::TooManyConnections { limit })),
            Box::new(CmError::TooManyConnections { limit }),
        ),
        (
            "Verbs",
            Box::new(ConnectionError::from(ModifyQpError::UnknownQp)),
            Box::new(VerbsError::from(ModifyQpError::UnknownQp)),
        ),
    ];
    for (variant, error, inner) in errors {
        check(&*error, variant);
        assert_eq!(error.to_string(), inner.to_string());
        let source = |error: &dyn Error| error.source().map(ToString::to_string);
        assert_eq!(source(&*error), source(&*inner), "{variant}");
    }
}

/// The programs for libibverbs and the commands print the reason of a failed open.
#[test]
fn the_reason_of_a_device_that_cannot_be_opened_is_the_last_text() {
    let error = VerbsError::from(no_privilege());
    assert_eq!(
        with_causes(&error).to_string(),
        "device `raw:eth0`: cannot open a packet socket (this needs CAP_NET_RAW; `--device udp:ADDRESS` needs no \
         privilege): the cause of it all"
    );
}
