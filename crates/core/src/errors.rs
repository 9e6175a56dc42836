//! The macro for error messages.

/// Implements `Display` and `Error` for an error with no source: a message for each shape.
macro_rules! messages {
    ($error:ident: $($shape:pat => $message:literal $(, $argument:expr)*;)+) => {
        impl std::fmt::Display for $error {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $($shape => write!(f, $message $(, $argument)*),)+
                }
            }
        }

        impl std::error::Error for $error {}
    };
}

pub(crate) use messages;
