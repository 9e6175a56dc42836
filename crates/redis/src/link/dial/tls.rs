//! TLS by rustls on ring, chosen here: a process with two providers has no default one.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{self, crypto::ring};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::config::TlsFiles;
use crate::error::ConnectError;

pub(super) struct Connector {
    name: ServerName<'static>,
    tls: TlsConnector,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Connector {
    pub(super) fn new(host: &str, files: &TlsFiles) -> Result<Self, ConnectError> {
        let name = ServerName::try_from(host.to_owned()).map_err(|error| {
            ConnectError::settings("the host in the URL of redis cannot have a certificate")
                .with_source(error)
        })?;
        let unusable = |error| ConnectError::settings("TLS cannot be used").with_source(error);
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_root_certificates(roots(files)?);
        let config = match &files.client {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = certificates(certificate)?;
                let key =
                    PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
                builder.with_client_auth_cert(chain, key).map_err(unusable)?
            }
        };
        Ok(Self { name, tls: TlsConnector::from(Arc::new(config)) })
    }

    pub(super) async fn connect(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.tls.connect(self.name.clone(), stream).await
    }

    /// Returns whether the server's certificate is not trusted, which waiting does not change.
    pub(super) fn is_distrust(error: &io::Error) -> bool {
        let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
    }
}

fn roots(files: &TlsFiles) -> Result<RootCertStore, ConnectError> {
    let mut store = RootCertStore::empty();
    if let Some(path) = &files.ca {
        for certificate in certificates(path)? {
            store.add(certificate).map_err(|error| unreadable(path, error))?;
        }
        return Ok(store);
    }
    let found = rustls_native_certs::load_native_certs();
    // A system's store may hold certificates nobody can read; one that works is enough.
    store.add_parsable_certificates(found.certs);
    if store.is_empty() {
        return Err(ConnectError::settings(
            "this system has no trusted certificates; name a file with `tls_ca_file`",
        ));
    }
    Ok(store)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| unreadable(path, error))?;
    if found.is_empty() {
        let path = path.display();
        return Err(ConnectError::settings(format!("{path} holds no PEM certificate")));
    }
    Ok(found)
}

fn unreadable(path: &Path, error: impl std::error::Error + Send + Sync + 'static) -> ConnectError {
    ConnectError::settings(format!("{} cannot be used for TLS", path.display())).with_source(error)
}
