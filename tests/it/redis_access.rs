//! Redis behind TLS and an ACL: the rights that the documentation lists are enough and none is too many, certificates
//! are checked, and who is not let in is told why.

use anyhow::{Context as _, ensure};
use redis::Commands as _;
use tickwatch::config::{Config, RedisConfig, Secret};
use tickwatch::sandbox::{Redis, Sentinel};
use tickwatch::store::check::check;
use tickwatch::store::connection;
use tickwatch::worker::supervisor::scripts_of;

use crate::dashboard::Live;
use crate::harness::{self, Case, Certificates, Needs, Stage, Worker, cases, free_address, program};
use crate::market::{Market, put_rules, walk};
use crate::sandbox::or_skip;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = cases!(Needs::Both;
        a_worker_with_the_documented_rights_does_everything_over_tls,
    );
    cases.extend(cases!(Needs::Nothing;
        each_documented_right_is_needed_and_its_lack_is_named_at_start,
        people_s_commands_work_with_the_documented_rights,
        sentinels_with_a_password_and_tls_lead_to_the_primary,
        a_server_that_is_not_trusted_or_does_not_trust_is_told_with_the_next_step,
        a_wrong_password_is_told_without_it,
    ));
    cases
}

const DOCUMENTED: &str = include_str!("../../docs/security.md");
const PASSWORD: &str = "correct-horse";

/// The words of the `ACL SETUSER` that the documentation gives for `user`, under the namespace `tw:`.
fn documented(user: &str) -> anyhow::Result<Vec<&'static str>> {
    let start = format!("ACL SETUSER {user} ");
    let (_, rest) = DOCUMENTED.split_once(&start).context("the user is documented")?;
    let (words, _) = rest.split_once("```").context("the block ends")?;
    Ok(words.split_whitespace().collect())
}

/// A Redis with TLS that asks for a client's certificate; its plain port is the test's own way in.
struct Guarded {
    redis: Redis,
    tls_port: u16,
    certificates: Certificates,
}

impl Guarded {
    fn start() -> anyhow::Result<Guarded> {
        Guarded::start_as("server")
    }

    fn start_as(server: &str) -> anyhow::Result<Guarded> {
        let certificates = Certificates::new()?;
        let tls_port = free_address()?.port();
        let redis = or_skip(Redis::start(&[
            ("tls-port", &*tls_port.to_string()),
            ("tls-ca-cert-file", &*certificates.path("ca.pem")),
            ("tls-cert-file", &*certificates.path(&format!("{server}.pem"))),
            ("tls-key-file", &*certificates.path(&format!("{server}.key"))),
            ("tls-auth-clients", "yes"),
        ]))?;
        Ok(Guarded { redis, tls_port, certificates })
    }

    /// Gives `user` what the documentation says, on the keys of `namespace`.
    fn grant(&self, user: &str, namespace: &str) -> anyhow::Result<()> {
        let mut command = redis::cmd("ACL");
        command.arg("SETUSER").arg(user);
        for word in documented(user)? {
            command.arg(match word {
                ">PASSWORD" => format!(">{PASSWORD}"),
                "~tw:*" => format!("~{namespace}*"),
                word => word.to_owned(),
            });
        }
        Ok(command.exec(&mut self.admin()?)?)
    }

    fn change(&self, user: &str, rule: &str) -> anyhow::Result<()> {
        Ok(redis::cmd("ACL").arg("SETUSER").arg(user).arg(rule).exec(&mut self.admin()?)?)
    }

    fn admin(&self) -> anyhow::Result<redis::Connection> {
        harness::connect(&self.redis.url())
    }

    fn login(&self, user: &str) -> RedisConfig {
        RedisConfig {
            url: format!("rediss://127.0.0.1:{}", self.tls_port),
            username: Some(user.into()),
            password: Some(Secret::from(PASSWORD)),
            tls_ca_file: Some(self.certificates.file("ca.pem")),
            tls_cert_file: Some(self.certificates.file("client.pem")),
            tls_key_file: Some(self.certificates.file("client.key")),
            ..RedisConfig::default()
        }
    }
}

fn a_worker_with_the_documented_rights_does_everything_over_tls(stage: &Stage) -> anyhow::Result<()> {
    let guarded = Guarded::start()?;
    guarded.grant("tickwatch", stage.namespace())?;
    let mut market = Market::open(stage, 2, |config| config.redis = guarded.login("tickwatch"))?;
    market.admin = Some(guarded.redis.url());
    put_rules(&mut market)?;
    market.config.redis.password = None; // a file's content shows no password; the environment brings it
    let environment = [("TICKWATCH_REDIS__PASSWORD", PASSWORD)];
    let mut workers = vec![Worker::start_with(&market.config, &[], &environment)?];
    workers[0].wait_ready()?;
    market.send(walk(31).take(2_000))?;
    market.send_bad("SYM-1", "no JSON")?;
    market.wait_delivered().with_context(|| workers[0].logs())?;
    let mut page = Live::open(workers[0].http(), "/api/overview")?;
    page.until("the page to find partitions and symbols", |page| {
        page.view["numbers"]["lag"]["value"] == 0
            && page.view["symbols"]["rows"].as_object().is_some_and(|r| !r.is_empty())
    })?;
    let mut page = Live::open(workers[0].http(), "/api/symbol?symbol=SYM-1")?;
    page.until("a symbol's page to find candles and rules", |page| {
        ["candles", "rules"].iter().all(|of| page.view[*of].as_object().is_some_and(|found| !found.is_empty()))
    })?;
    drop(page);
    workers.remove(0).stop()?; // another one takes over
    workers.push(Worker::start_with(&market.config, &[], &environment)?);
    market.send(walk(32).take(500))?;
    market.send_closing()?;
    market.wait_delivered().with_context(|| workers[0].logs())?;
    market.check()?;
    let logs = workers[0].logs();
    ensure!(!logs.contains("NOPERM") && !logs.contains(PASSWORD), "{logs}");
    let denied: Vec<redis::Value> = redis::cmd("ACL").arg("LOG").query(&mut guarded.admin()?)?;
    let asked_in_vain = format!("{denied:?}");
    let optional = ["config|get", "client|setinfo", "sscan"];
    let denied = denied.len() - optional.iter().filter(|command| asked_in_vain.contains(*command)).count();
    ensure!(denied == 0, "{asked_in_vain}");
    Ok(())
}

fn each_documented_right_is_needed_and_its_lack_is_named_at_start(stage: &Stage) -> anyhow::Result<()> {
    let guarded = Guarded::start()?;
    let config = Config { redis: guarded.login("tickwatch"), ..Config::default() };
    let scripts = scripts_of(&config);
    let try_it = || {
        stage.block_on(async {
            let mut connection = connection::connect(&config.redis).await?;
            check(&mut connection).await?;
            scripts.probe(&mut connection).await?;
            anyhow::Ok(())
        })
    };
    guarded.grant("tickwatch", "tw:")?;
    try_it().context("with all rights")?;
    let rights: Vec<&str> = documented("tickwatch")?.into_iter().filter(|word| word.starts_with('+')).collect();
    ensure!(rights.len() > 20, "{rights:?}");
    for right in rights {
        if right == "+role" {
            continue; // asked under Sentinel and by the pool only, which then opens a connection anew
        }
        guarded.change("tickwatch", &right.replace('+', "-"))?;
        let error =
            try_it().err().with_context(|| format!("{right} is not needed: take it out of the documentation"))?;
        let told = format!("{error:#}");
        let command = right.trim_start_matches('+').split('|').next().unwrap_or_default();
        ensure!(told.to_lowercase().contains(command), "without {right}: {told}");
        guarded.grant("tickwatch", "tw:")?;
        try_it().with_context(|| format!("with {right} given back"))?;
    }
    let left: Vec<String> = guarded.admin()?.keys("*")?;
    ensure!(left.is_empty(), "{left:?}");
    guarded.change("tickwatch", "resetkeys")?;
    guarded.change("tickwatch", "~other:*")?;
    let told = format!("{:#}", try_it().err().context("without the keys")?);
    ensure!(told.contains("on the keys of the namespace"), "{told}");
    Ok(())
}

fn people_s_commands_work_with_the_documented_rights(_: &Stage) -> anyhow::Result<()> {
    let guarded = Guarded::start()?;
    guarded.grant("trader", "tw:")?;
    for arguments in [
        &["rule", "put", "BBCA", "edge", ">=", "9500", "--id", "alice-1", "--once", "--cooldown", "5m"][..],
        &["rule", "list"],
        &["rule", "list", "BBCA", "--json"],
        &["rule", "export"],
        &["candles", "BBCA", "1s"],
        &["rule", "rm", "BBCA", "alice-1"],
    ] {
        let login = guarded.login("trader");
        let output = program()
            .args(arguments)
            .env("TICKWATCH_REDIS__URL", &login.url)
            .env("TICKWATCH_REDIS__USERNAME", "trader")
            .env("TICKWATCH_REDIS__PASSWORD", PASSWORD)
            .env("TICKWATCH_REDIS__TLS_CA_FILE", guarded.certificates.file("ca.pem"))
            .env("TICKWATCH_REDIS__TLS_CERT_FILE", guarded.certificates.file("client.pem"))
            .env("TICKWATCH_REDIS__TLS_KEY_FILE", guarded.certificates.file("client.key"))
            .output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{arguments:?}: {said}");
    }
    Ok(())
}

fn sentinels_with_a_password_and_tls_lead_to_the_primary(stage: &Stage) -> anyhow::Result<()> {
    let guarded = Guarded::start()?;
    guarded.grant("tickwatch", "tw:")?;
    let certificates = &guarded.certificates;
    let port = free_address()?.port();
    let sentinel = or_skip(Sentinel::start_on(
        "prices",
        guarded.tls_port,
        &[
            &format!("tls-port {port}"),
            &format!("tls-ca-cert-file {}", certificates.path("ca.pem")),
            &format!("tls-cert-file {}", certificates.path("server.pem")),
            &format!("tls-key-file {}", certificates.path("server.key")),
            "tls-replication yes",
            "requirepass of-the-sentinel",
        ],
    ))?;
    let mut config = RedisConfig {
        url: RedisConfig::default().url,
        sentinels: vec![format!("127.0.0.1:{port}")],
        master: Some("prices".into()),
        tls: true,
        sentinel_password: Some("of-the-sentinel".into()),
        ..guarded.login("tickwatch")
    };
    let connect = |config: &RedisConfig| stage.block_on(connection::connect(config)).map(drop);
    connect(&config)?;
    config.sentinel_password = Some("another".into());
    let told = connect(&config).err().context("with a wrong password")?.to_string();
    ensure!(told.contains(&format!("sentinel 127.0.0.1:{port}: ")) && !told.contains("another"), "{told}");
    drop(sentinel);
    Ok(())
}

fn a_server_that_is_not_trusted_or_does_not_trust_is_told_with_the_next_step(stage: &Stage) -> anyhow::Result<()> {
    let guarded = Guarded::start()?;
    guarded.grant("tickwatch", "tw:")?;
    let strangers = Certificates::new()?;
    let told = |config: &RedisConfig| -> anyhow::Result<String> {
        let outcome = stage.block_on(async {
            let mut connection = connection::connect(config).await?;
            check(&mut connection).await?;
            anyhow::Ok(())
        });
        Ok(format!("{:#}", outcome.err().context("it must not be let in")?))
    };
    let login = || guarded.login("tickwatch");
    let unknown_authority = told(&RedisConfig { tls_ca_file: Some(strangers.file("ca.pem")), ..login() })?;
    ensure!(unknown_authority.contains("certificate verify failed"), "{unknown_authority}");
    ensure!(unknown_authority.contains("tls_ca_file"), "{unknown_authority}");
    let system_s_authorities = told(&RedisConfig { tls_ca_file: None, ..login() })?;
    ensure!(system_s_authorities.contains("tls_ca_file"), "{system_s_authorities}");
    let no_certificate = told(&RedisConfig { tls_cert_file: None, tls_key_file: None, ..login() })?;
    ensure!(no_certificate.contains("tls_cert_file"), "{no_certificate}");
    let not_there = told(&RedisConfig { tls_ca_file: Some("no/such/ca.pem".into()), ..login() })?;
    ensure!(not_there.contains("[redis] tls_ca_file: cannot read no/such/ca.pem"), "{not_there}");
    let no_key = told(&RedisConfig { tls_key_file: Some(guarded.certificates.file("ca.pem")), ..login() })?;
    ensure!(no_key.contains("PKCS #8"), "{no_key}");

    let another_name = Guarded::start_as("elsewhere")?;
    another_name.grant("tickwatch", "tw:")?;
    let told = told(&another_name.login("tickwatch"))?;
    ensure!(told.contains("certificate verify failed") && told.contains("name"), "{told}");
    Ok(())
}

fn a_wrong_password_is_told_without_it(_: &Stage) -> anyhow::Result<()> {
    let guarded = Guarded::start()?;
    guarded.grant("tickwatch", "tw:")?;
    let output = program()
        .args(["rule", "list", "-vv"])
        .env("TICKWATCH_REDIS__URL", guarded.redis.url())
        .env("TICKWATCH_REDIS__USERNAME", "tickwatch")
        .env("TICKWATCH_REDIS__PASSWORD", "battery-staple")
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1) && said.contains("TICKWATCH_REDIS__PASSWORD"), "{said}");
    ensure!(!said.contains("battery-staple"), "{said}");
    Ok(())
}
