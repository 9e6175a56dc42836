//! Certificate authorities that the commands trust over `https://`: the system's, or those of a file.
//!
//! There is no way not to verify.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::Failure;

/// A connector that trusts the authorities of this file, or of the system.
pub(super) fn connector(ca_file: Option<&Path>) -> Result<TlsConnector, Failure> {
    let roots = match ca_file {
        Some(path) => of_file(path)?,
        None => of_system()?,
    };
    let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn of_file(path: &Path) -> Result<RootCertStore, Failure> {
    let name = path.display();
    let mut roots = RootCertStore::empty();
    let found = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| format!("{name} is not a file of PEM certificates: {error}"))?;
    for certificate in found {
        roots.add(certificate).map_err(|error| format!("{name} cannot be used: {error}"))?;
    }
    if roots.is_empty() {
        return Err(format!("{name} holds no PEM certificate").into());
    }
    Ok(roots)
}

fn of_system() -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    // A system's store may hold unreadable certificates; one that works is enough.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("the system has no trusted certificates: name a file with --ca-file".into());
    }
    Ok(roots)
}
