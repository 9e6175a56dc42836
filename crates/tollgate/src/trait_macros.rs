//! Macros for traits that many types of this crate implement alike.

/// Implements `Display` and `Error` for an error type: a message for each pattern, and, where the
/// type wraps other errors, its sources and conversions.
macro_rules! error_messages {
    (
        $type:ty { $($pattern:pat $(if $guard:expr)? => $message:literal $(, $argument:expr)*;)+ }
        $(source { $($wrapper:pat => $source:expr;)+ })?
        $(from { $($wrapped:ty => $variant:ident;)+ })?
    ) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $($pattern $(if $guard)? => write!(f, $message $(, $argument)*),)+
                }
            }
        }

        impl std::error::Error for $type {
            $(fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                match self {
                    $($wrapper => Some($source),)+
                    _ => None,
                }
            })?
        }

        $($(impl From<$wrapped> for $type {
            fn from(error: $wrapped) -> Self {
                Self::$variant(error)
            }
        })+)?
    };
}

/// Implements `Debug` with the named fields, without bounds on the type's parameters.
macro_rules! opaque_debug {
    ($type:ident $(<$parameter:ident $(: $bound:path)?>)?: |$it:ident| $($name:ident = $value:expr),*) => {
        impl $(<$parameter $(: $bound)?>)? std::fmt::Debug for $type $(<$parameter>)? {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let $it = self;
                f.debug_struct(stringify!($type))
                    $(.field(stringify!($name), &$value))*
                    .finish_non_exhaustive()
            }
        }
    };
}
