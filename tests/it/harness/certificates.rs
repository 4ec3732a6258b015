//! An authority of a test's own, with a server's and a client's certificate, as PEM files.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tempfile::TempDir;

/// Files that last as long as this does. Names are of this machine: `localhost` and 127.0.0.1.
pub(crate) struct Certificates {
    directory: TempDir,
}

#[allow(dead_code)] // for every module; not all use each
impl Certificates {
    /// Makes an authority and what it signs.
    pub(crate) fn new() -> anyhow::Result<Certificates> {
        let directory = tempfile::Builder::new().prefix("tickwatch-certificates-").tempdir()?;
        let mut params = named("test authority", &[])?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        fs::write(directory.path().join("ca.pem"), authority.pem())?;
        for (name, hosts) in
            [("server", &["localhost", "127.0.0.1"][..]), ("elsewhere", &["example.org"]), ("client", &[])]
        {
            let key = KeyPair::generate()?;
            let certificate = named(name, hosts)?.signed_by(&key, &authority)?;
            fs::write(directory.path().join(format!("{name}.pem")), certificate.pem())?;
            fs::write(directory.path().join(format!("{name}.key")), key.serialize_pem())?;
        }
        Ok(Certificates { directory })
    }

    /// `ca.pem`, `server.pem`, `server.key`, `client.pem`, `client.key`; `elsewhere.…` is another server's.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What is in it.
    pub(crate) fn pem(&self, name: &str) -> anyhow::Result<String> {
        Ok(fs::read_to_string(self.file(name))?)
    }

    /// The path as text, for a program's arguments.
    pub(crate) fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }
}

fn named(name: &str, hosts: &[&str]) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::new(hosts.iter().map(|host| (*host).to_owned()).collect::<Vec<_>>())?;
    params.distinguished_name.push(DnType::CommonName, name);
    Ok(params)
}
