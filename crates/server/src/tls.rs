//! TLS at the listeners: one certificate for all of them, read again when its files change.
//!
//! The two files are read every second and at SIGHUP. Their bytes decide whether anything changed, so that
//! swapped links, as of ConfigMaps and certbot, are followed too. A pair that is broken, or half written,
//! changes nothing but [`Tls::error`]: new connections use the last good pair. Open connections keep theirs.
//!
//! Each connection calls [`Tls::accept`] in its own task, so that a client that does not shake hands holds up
//! no other. The key is in no message, log line or `Debug`.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::rules::read_at_most;
use crate::sync::lock;
pub(crate) use tokio_rustls::server::TlsStream;

/// Time limit for a handshake, the same as for the head of a request.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Polling interval of the files.
const POLL: Duration = Duration::from_secs(1);

/// The longest file that is read: a chain has a few kilobytes.
const MAX_FILE: usize = 1 << 20;

/// Application protocol that a listener agrees to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/1.1.
    Http1,
    /// HTTP/2, as gRPC does.
    Http2,
}

/// A certificate and its key, as the files last had a good pair.
pub struct Tls {
    files: TlsFiles,
    present: ArcSwap<ServerConfigs>,
    /// Hash of the files at the last read, so that the same ones are not checked twice.
    last_read_hash: Mutex<u64>,
    hasher: RandomState,
    error: Mutex<Option<String>>,
    /// Set if other users could read the key at the last check.
    open_to_others: AtomicBool,
    /// Times that a pair was loaded.
    pub loaded: AtomicU64,
    /// Times that the files had no usable pair.
    pub rejected: AtomicU64,
    /// Handshakes that failed.
    pub failed: AtomicU64,
    /// Handshakes that took too long.
    pub timed_out: AtomicU64,
}

/// Paths of the certificate chain and the key, as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain, the server's own certificate first.
    pub cert: PathBuf,
    /// The key.
    pub key: PathBuf,
}

/// TLS settings by application protocol.
struct ServerConfigs {
    http1: Arc<ServerConfig>,
    http2: Arc<ServerConfig>,
}

/// Error of a pair of files that cannot be used.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct TlsError(String);

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Tls {
    /// Reads the pair for the first time.
    ///
    /// # Errors
    ///
    /// When it cannot be used: a server with TLS configured must not start without it.
    pub fn open(files: TlsFiles) -> Result<Self, TlsError> {
        let read = files.read();
        let hasher = RandomState::new();
        let last_read_hash = Mutex::new(hasher.hash_one(&read));
        let pair = read?.pair(&files)?;
        let tls = Self {
            last_read_hash,
            open_to_others: AtomicBool::new(false),
            hasher,
            files,
            present: ArcSwap::from_pointee(pair),
            error: Mutex::default(),
            loaded: AtomicU64::new(1),
            rejected: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
        };
        tls.check_key_mode();
        Ok(tls)
    }

    /// Warns when the key has come to be open to others.
    fn check_key_mode(&self) {
        let open = is_open_to_others(&self.files.key);
        let before = self.open_to_others.swap(open, Ordering::Relaxed);
        if open && !before {
            tracing::warn!(
                file = %self.files.key.display(),
                "other users of this machine can read or change the key: chmod it to 600"
            );
        }
    }

    /// Error of the current files, if an older pair is in use.
    pub fn error(&self) -> Option<String> {
        lock(&self.error).clone()
    }

    /// Reloads the files, and uses their pair from now on if it is new and valid. Blocks.
    pub fn reload(&self) {
        let mut last_read_hash = lock(&self.last_read_hash);
        // The mode of a file can change while its bytes stay.
        self.check_key_mode();
        let read = self.files.read();
        let hash = self.hasher.hash_one(&read);
        if *last_read_hash == hash {
            return;
        }
        *last_read_hash = hash;
        let error = match read.and_then(|bytes| bytes.pair(&self.files)) {
            Ok(pair) => {
                self.present.store(Arc::new(pair));
                self.loaded.fetch_add(1, Ordering::Relaxed);
                tracing::info!(file = %self.files.cert.display(), "loaded a new certificate");
                None
            }
            Err(error) => {
                self.rejected.fetch_add(1, Ordering::Relaxed);
                tracing::error!(%error, "rejected the new certificate; the previous one is still used");
                Some(error.to_string())
            }
        };
        *lock(&self.error) = error;
    }

    /// Follows the files until dropped.
    pub async fn follow(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(POLL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let this = Arc::clone(&self);
            // A panic was reported, and the next reload is a second away.
            let _ = tokio::task::spawn_blocking(move || this.reload()).await;
        }
    }

    /// Shakes hands with a client, in its own task.
    ///
    /// # Errors
    ///
    /// When it does not speak TLS, or not this protocol, or takes too long. It is counted.
    pub async fn accept(&self, stream: TcpStream, alpn: Alpn) -> io::Result<TlsStream<TcpStream>> {
        let config = {
            let pair = self.present.load();
            Arc::clone(match alpn {
                Alpn::Http1 => &pair.http1,
                Alpn::Http2 => &pair.http2,
            })
        };
        let shaken = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream));
        match shaken.await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
            Err(_) => {
                self.timed_out.fetch_add(1, Ordering::Relaxed);
                Err(io::ErrorKind::TimedOut.into())
            }
        }
    }
}

/// Contents of the files. Has no `Debug`: half of it is the key.
#[derive(Hash)]
struct PemBytes {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl TlsFiles {
    fn read(&self) -> Result<PemBytes, TlsError> {
        Ok(PemBytes { cert: read(&self.cert)?, key: read(&self.key)? })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let wrong = |error: io::Error| TlsError(format!("cannot read {}: {error}", path.display()));
    read_at_most(path, MAX_FILE).map_err(wrong)
}

impl PemBytes {
    fn pair(&self, files: &TlsFiles) -> Result<ServerConfigs, TlsError> {
        let (cert, key) = (files.cert.display(), files.key.display());
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(&self.cert).collect::<Result<_, _>>().map_err(
                |error| TlsError(format!("{cert} is not a chain of PEM certificates: {error}")),
            )?;
        if chain.is_empty() {
            return Err(TlsError(format!("{cert} holds no PEM certificate")));
        }
        // The parser's own error is left out: it may quote a line of the file.
        let secret = PrivateKeyDer::from_pem_slice(&self.key)
            .map_err(|_| TlsError(format!("{key} holds no readable PEM key")))?;
        let build = |alpn: &[u8]| {
            let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()))
                .with_safe_default_protocol_versions()?
                .with_no_client_auth();
            let mut config = builder.with_single_cert(chain.clone(), secret.clone_key())?;
            config.alpn_protocols = vec![alpn.to_vec()];
            Ok(Arc::new(config))
        };
        let wrong = |error: tokio_rustls::rustls::Error| {
            TlsError(format!("cannot use {cert} with {key}: {error}"))
        };
        Ok(ServerConfigs {
            http1: build(b"http/1.1").map_err(wrong)?,
            http2: build(b"h2").map_err(wrong)?,
        })
    }
}

/// True if users other than the owner and the group may read or write the file.
fn is_open_to_others(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).is_ok_and(|data| data.permissions().mode() & 0o006 != 0)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};
    use tokio::net::TcpListener;

    use super::*;

    fn pair(dir: &Path) -> TlsFiles {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec!["a".to_owned()]).unwrap().self_signed(&key).unwrap();
        let files = TlsFiles { cert: dir.join("cert.pem"), key: dir.join("key.pem") };
        std::fs::write(&files.cert, cert.pem()).unwrap();
        std::fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }

    /// C21, in virtual time.
    #[tokio::test]
    async fn a_client_that_does_not_shake_hands_is_given_up_on() {
        let dir = std::env::temp_dir().join(format!("tollgate-tls-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let tls = Tls::open(pair(&dir)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        // The first bytes of a greeting, and no more.
        client.try_write(b"\x16\x03\x01\x02\x00\x01").unwrap();
        tokio::time::pause();
        let began = tokio::time::Instant::now();

        let error = tls.accept(server, Alpn::Http1).await.unwrap_err();

        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), 10);
        assert_eq!(tls.timed_out.load(Ordering::Relaxed), 1);
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_key_that_everybody_can_read_is_noticed() {
        use std::os::unix::fs::PermissionsExt as _;
        let path = std::env::temp_dir().join(format!("tollgate-key-{}", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let mode =
            |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o640);
        assert!(!is_open_to_others(&path));
        mode(0o644);
        assert!(is_open_to_others(&path));
        std::fs::remove_file(&path).unwrap();
    }
}
