//! Certificates of a server that also speaks TLS.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use crate::scratch::{Port, TempDir};

/// The TLS port of a server, beside its unencrypted one.
///
/// Its certificate is for `127.0.0.1` and `localhost`. An authority that exists for this server
/// alone signs it, and its key is discarded. Clients need no certificate.
#[derive(Debug)]
pub struct TlsEndpoint {
    port: Port,
    ca_file: PathBuf,
}

impl TlsEndpoint {
    /// The URL `rediss://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.port.number())
    }

    /// The port that speaks TLS.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The authority's certificate as a PEM file, which is removed with the server.
    pub fn ca_file(&self) -> &Path {
        &self.ca_file
    }

    /// Creates the certificates in `dir`, and returns the lines of configuration that use them.
    pub(crate) fn prepare(dir: &TempDir) -> Result<(Self, String), Box<dyn std::error::Error>> {
        let mut authority = CertificateParams::new(vec![])?;
        // Without a name of its own, OpenSSL takes what it signs for self-signed.
        authority.distinguished_name.push(DnType::CommonName, "Tollgate test authority");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let key = KeyPair::generate()?;
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let certificate = CertificateParams::new(names)?.signed_by(&key, &authority)?;

        let ca_file = dir.file("ca.pem");
        std::fs::write(&ca_file, authority.pem())?;
        std::fs::write(dir.file("cert.pem"), certificate.pem())?;
        std::fs::write(dir.file("key.pem"), key.serialize_pem())?;

        let port = Port::free()?;
        let (number, dir) = (port.number(), dir.path().display());
        let config = format!(
            "tls-port {number}\ntls-auth-clients no\ntls-ca-cert-file \"{dir}/ca.pem\"\n\
             tls-cert-file \"{dir}/cert.pem\"\ntls-key-file \"{dir}/key.pem\"\n"
        );
        Ok((Self { port, ca_file }, config))
    }
}
