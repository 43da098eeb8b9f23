//! Creates stores of `object_store` from an address and the keys of `[storage]`: one function per provider.
//!
//! All stores of a storage share one credentials object, so that credentials are requested once; each thread that reads
//! has its own store (see `client_pool`).

use std::ffi::OsString;
use std::sync::Arc;

use async_trait::async_trait;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredentialProvider};
use object_store::azure::{AzureConfigKey, AzureCredentialProvider, MicrosoftAzureBuilder};
use object_store::client::HttpClient;
use object_store::gcp::{GcpCredentialProvider, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::path::Path as Key;
use object_store::{CredentialProvider, Error, GetOptions, GetResult, ObjectStore, RetryConfig};
use url::Url;

use super::address::{Address, Scheme, is_loopback, refusal};
use super::client::{ClientTerms, Connector, chain, tls};
use super::hub::{HubClient, Repository};
use super::keys::RemoteKeys;
use super::pace::Pace;
use super::process::ProcessCredentials;
use super::profile::{Profile, ProfileCredentials, has_credentials};
use super::trace::Trace;

/// What one thread reads with.
#[derive(Debug, Clone)]
pub(super) struct Store {
    pub(super) objects: Objects,
    pub(super) listing: Listing,
}

/// How an object is requested.
#[derive(Debug, Clone)]
pub(super) enum Objects {
    /// By the provider's API.
    Provider(Arc<dyn ObjectStore>),
    Hub(HubClient),
}

impl Objects {
    /// Requests an object or a part of it.
    ///
    /// # Errors
    /// There is no usable response.
    pub(super) async fn get_opts(
        &self,
        key: &Key,
        options: GetOptions,
    ) -> Result<GetResult, Error> {
        match self {
            Self::Provider(store) => store.get_opts(key, options).await,
            Self::Hub(hub) => hub.get_opts(key, options).await,
        }
    }
}

/// How a folder is listed.
#[derive(Clone)]
pub(super) enum Listing {
    /// By the provider's API.
    Pages(Arc<dyn PaginatedListStore>),
    /// From the page that a web server shows of a folder.
    Web(HttpClient, Url),
    /// By the hub's API.
    Hub(HubClient),
}

impl std::fmt::Debug for Listing {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Pages(_) => "Pages",
            Self::Web(..) => "Web",
            Self::Hub(_) => "Hub",
        })
    }
}

/// Makes stores.
#[derive(Debug)]
pub(super) struct Stores {
    provider: Provider,
    connector: Connector,
    /// Whose credentials are used, for messages.
    pub(super) identity: String,
    /// The command that provides the credentials, if there is one.
    pub(super) process: Option<Arc<ProcessCredentials>>,
}

#[derive(Debug)]
enum Provider {
    S3(Box<AmazonS3Builder>),
    Gs(Box<GoogleCloudStorageBuilder>),
    Az(Box<MicrosoftAzureBuilder>),
    Web(Url),
    Hub(Arc<Repository>, Option<Arc<Pace>>),
}

impl Stores {
    /// Checks everything that can be checked without a request.
    ///
    /// # Errors
    /// A setting is missing or wrong; with its remedy.
    pub(super) fn new(
        address: &Address,
        keys: &RemoteKeys,
        variable: &dyn Fn(&str) -> Option<OsString>,
    ) -> Result<Self, String> {
        let headers = keys.header_map()?;
        if !headers.is_empty() && address.scheme != Scheme::Web {
            return Err("storage.headers apply to https:// only; remove them".to_owned());
        }
        if let Some(endpoint) = &keys.endpoint {
            check_endpoint(endpoint, keys, "storage.endpoint")?;
        }
        let is_plain = |url: &str| url.starts_with("http://");
        let repository = repository_of(address, keys, variable)?;
        let needs_tls = match address.scheme {
            Scheme::Hub => {
                repository.as_ref().is_none_or(|repository| repository.endpoint.is_encrypted())
            }
            Scheme::Web => !is_plain(&address.base),
            _ => !keys.endpoint.as_deref().is_some_and(is_plain) || !keys.anonymous,
        };
        let tls = tls(needs_tls)?;
        let asked = match address.scheme {
            Scheme::Web => Some(address.base.as_str()),
            _ => keys.endpoint.as_deref(),
        };
        let is_loopback =
            asked.and_then(|url| Url::parse(url).ok()).is_some_and(|url| is_loopback(&url))
                || repository.as_ref().is_some_and(|hub| hub.endpoint.is_loopback());
        let hub = repository.as_ref().map(|repository| repository.endpoint.origin());
        let server = hub.as_deref().or(keys.endpoint.as_deref()).unwrap_or(&address.base);
        let mut pace = keys.requests_per_second.map(|rate| Pace::of(server, rate));
        // The hub's own client takes the turns.
        let pace_of_hub = if repository.is_some() { pace.take() } else { None };
        let (stall, addresses) = (keys.stall, Arc::default());
        let names_are_bytes = address.scheme == Scheme::Web;
        let terms =
            ClientTerms { stall, headers, names_are_bytes, is_loopback, tls, addresses, pace };
        let terms = Arc::new(terms);
        let data = Connector { terms: Arc::clone(&terms), for_credentials: false };
        let credentials = Connector { terms, for_credentials: true };
        let mut process = None;
        let (provider, identity) = match address.scheme {
            Scheme::S3 => s3(address, keys, &data, credentials, &mut process)?,
            Scheme::Gs => gs(address, keys, &data, credentials)?,
            Scheme::Az => az(address, keys, &data, credentials)?,
            Scheme::Web => web(address, keys)?,
            Scheme::Hub => {
                let repository = repository.ok_or("the URL names no repository of the hub")?;
                let identity = repository.identity();
                (Provider::Hub(Arc::new(repository), pace_of_hub), identity)
            }
        };
        Ok(Self { provider, connector: data, identity, process })
    }

    /// The hub's repository, if these are its files.
    pub(super) const fn repository(&self) -> Option<&Arc<Repository>> {
        match &self.provider {
            Provider::Hub(repository, _) => Some(repository),
            _ => None,
        }
    }

    /// The server, and of Azure the account, if the URL does not say it: two of them may have other data under one URL.
    pub(super) fn server(&self) -> Option<String> {
        match &self.provider {
            Provider::S3(builder) => builder.get_config_value(&AmazonS3ConfigKey::S3Endpoint),
            Provider::Gs(builder) => builder.get_config_value(&GoogleConfigKey::BaseUrl),
            Provider::Az(builder) => {
                let keys = [AzureConfigKey::AccountName, AzureConfigKey::Endpoint];
                let words: Vec<_> =
                    keys.iter().filter_map(|key| builder.get_config_value(key)).collect();
                Some(words.join(" "))
            }
            Provider::Web(_) => None,
            Provider::Hub(repository, _) => repository.endpoint.unusual(),
        }
    }

    /// How requests to the hub are spread over time.
    #[cfg(test)]
    pub(super) fn pace_of_hub(&self) -> Option<Arc<Pace>> {
        match &self.provider {
            Provider::Hub(_, pace) => pace.clone(),
            _ => None,
        }
    }

    /// A store with separate connections.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(super) fn make(&self) -> Result<Store, String> {
        fn pages<S: ObjectStore + PaginatedListStore>(store: S) -> Store {
            let store = Arc::new(store);
            Store { objects: Objects::Provider(store.clone()), listing: Listing::Pages(store) }
        }
        let words = |error: object_store::Error| chain(&error);
        match &self.provider {
            Provider::S3(builder) => builder.as_ref().clone().build().map(pages).map_err(words),
            Provider::Gs(builder) => builder.as_ref().clone().build().map(pages).map_err(words),
            Provider::Az(builder) => builder.as_ref().clone().build().map(pages).map_err(words),
            Provider::Web(url) => {
                let builder = HttpBuilder::new()
                    .with_url(url.as_str())
                    .with_retry(no_retries())
                    .with_http_connector(self.connector.clone());
                let objects = Arc::new(builder.build().map_err(words)?);
                let listing = Listing::Web(self.connector.client()?, url.clone());
                Ok(Store { objects: Objects::Provider(objects), listing })
            }
            Provider::Hub(repository, pace) => {
                let (http, pace) = (self.connector.client()?, pace.clone());
                let hub = HubClient::new(http, Arc::clone(repository), pace);
                Ok(Store { objects: Objects::Hub(hub.clone()), listing: Listing::Hub(hub) })
            }
        }
    }
}

/// The hub's repository that an address names.
fn repository_of(
    address: &Address,
    keys: &RemoteKeys,
    variable: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Option<Repository>, String> {
    let Some(name) = address.repository() else { return Ok(None) };
    if keys.endpoint.is_some() {
        return Err("storage.endpoint does not apply to hf://: set HF_ENDPOINT instead, since it gets the token"
            .to_owned());
    }
    Repository::new(name, keys.anonymous, variable).map(Some)
}

/// The callers decide what is retried, and when.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

fn check_endpoint(endpoint: &str, keys: &RemoteKeys, name: &str) -> Result<(), String> {
    let url = Url::parse(endpoint)
        .ok()
        .filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some())
        .filter(|url| {
            url.username().is_empty() && url.password().is_none() && url.query().is_none()
        })
        .ok_or_else(|| {
            format!(
                "{name} must be a URL such as \"https://minio.lab:9000\", without a user or a query"
            )
        })?;
    refusal(&url, keys.allow_http).map_or(Ok(()), |why| Err(format!("{name}: {why}")))
}

type Chosen = Result<(Provider, String), String>;

fn s3(
    address: &Address,
    keys: &RemoteKeys,
    data: &Connector,
    credentials: Connector,
    process: &mut Option<Arc<ProcessCredentials>>,
) -> Chosen {
    let words = |error: object_store::Error| chain(&error);
    let mut builder =
        AmazonS3Builder::from_env().with_bucket_name(&address.bucket).with_retry(no_retries());
    if keys.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let has_keys = builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some();
    let named = keys.profile.clone().or_else(|| {
        let variable = std::env::var("AWS_PROFILE").ok().filter(|name| !name.is_empty());
        variable.filter(|_| !has_keys)
    });
    let profile = Profile::new(named.as_deref().unwrap_or("default"));
    // The profile is read only if it is needed.
    let entries = if named.is_some() || !has_keys { profile.read()? } else { None };
    let entry = |key: &str| entries.as_ref().and_then(|entries| entries.get(key)).cloned();
    let is_set = |key| builder.get_config_value(&key).is_some();
    let has_region = is_set(AmazonS3ConfigKey::Region) || is_set(AmazonS3ConfigKey::DefaultRegion);
    let region = keys.region.clone().or_else(|| entry("region").filter(|_| !has_region));
    if let Some(region) = region {
        builder = builder.with_region(region);
    }
    let variable = |name, key| Some((builder.get_config_value(&key)?, name));
    let endpoint = (keys.endpoint.clone().map(|endpoint| (endpoint, "storage.endpoint")))
        .or_else(|| variable("AWS_ENDPOINT_URL_S3", AmazonS3ConfigKey::S3Endpoint))
        .or_else(|| variable("AWS_ENDPOINT_URL", AmazonS3ConfigKey::Endpoint))
        .or_else(|| Some((entry("endpoint_url")?, "endpoint_url of the profile")));
    if let Some((endpoint, name)) = endpoint {
        check_endpoint(&endpoint, keys, name)?;
        // Before any other.
        builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, endpoint);
    }
    if keys.virtual_hosted {
        builder = builder.with_virtual_hosted_style_request(true);
    }
    let has_web_identity = is_set_in_environment("AWS_WEB_IDENTITY_TOKEN_FILE")
        || is_set_in_environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        || is_set_in_environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    let (provider, identity): (AwsCredentialProvider, _) = if keys.anonymous {
        let none = object_store::aws::AwsCredential {
            key_id: String::new(),
            secret_key: String::new(),
            token: None,
        };
        (
            Arc::new(object_store::StaticCredentialProvider::new(none)),
            "a request without credentials".to_owned(),
        )
    } else if named.is_some()
        || (!has_keys && !has_web_identity && entries.as_ref().is_some_and(has_credentials))
    {
        let identity = format!("the credentials of profile `{}`", profile.name);
        let provider: AwsCredentialProvider = match profile.command()? {
            Some(command) => {
                let found = ProcessCredentials::of(&profile.name, &command)?;
                *process = Some(Arc::clone(&found));
                Arc::new(Noted(found))
            }
            None => Arc::new(ProfileCredentials::new(profile)?),
        };
        (provider, identity)
    } else {
        let store = builder.clone().with_http_connector(credentials).build().map_err(words)?;
        let identity = match has_keys {
            true => "the credentials of AWS_ACCESS_KEY_ID",
            false => "the credentials of this machine's role",
        };
        (Arc::new(Noted(Arc::clone(store.credentials()))), identity.to_owned())
    };
    let builder = builder.with_credentials(provider).with_http_connector(data.clone());
    Ok((Provider::S3(Box::new(builder)), identity))
}

fn is_set_in_environment(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

fn gs(address: &Address, keys: &RemoteKeys, data: &Connector, credentials: Connector) -> Chosen {
    let mut builder = GoogleCloudStorageBuilder::from_env()
        .with_bucket_name(&address.bucket)
        .with_retry(no_retries())
        .with_skip_signature(keys.anonymous);
    if let Some(endpoint) = &keys.endpoint {
        builder = builder.with_base_url(endpoint);
    } else if let Some(endpoint) = builder.get_config_value(&GoogleConfigKey::BaseUrl) {
        check_endpoint(&endpoint, keys, "GOOGLE_BASE_URL")?;
    }
    let mut identity = "a request without credentials".to_owned();
    if !keys.anonymous {
        let store = builder
            .clone()
            .with_http_connector(credentials)
            .build()
            .map_err(|error| chain(&error))?;
        let noted: GcpCredentialProvider = Arc::new(Noted(Arc::clone(store.credentials())));
        builder = builder.with_credentials(noted);
        identity = "Google's application default credentials".to_owned();
    }
    Ok((Provider::Gs(Box::new(builder.with_http_connector(data.clone()))), identity))
}

fn az(address: &Address, keys: &RemoteKeys, data: &Connector, credentials: Connector) -> Chosen {
    let mut builder = MicrosoftAzureBuilder::from_env()
        .with_container_name(&address.bucket)
        .with_retry(no_retries())
        .with_skip_signature(keys.anonymous);
    if let Some(account) = &keys.account {
        builder = builder.with_account(account);
    }
    if builder.get_config_value(&AzureConfigKey::AccountName).is_none() {
        return Err(
            "az:// needs an account: set storage.account, or AZURE_STORAGE_ACCOUNT_NAME".to_owned()
        );
    }
    if let Some(endpoint) = &keys.endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    } else if let Some(endpoint) = builder.get_config_value(&AzureConfigKey::Endpoint) {
        check_endpoint(&endpoint, keys, "AZURE_STORAGE_ENDPOINT")?;
    }
    // Whether plain HTTP is allowed is checked above and where `storage.endpoint` is read.
    builder = builder.with_allow_http(true);
    let is_set = |key| builder.get_config_value(&key).is_some();
    let mut identity = match () {
        () if is_set(AzureConfigKey::AccessKey) => "the key of AZURE_STORAGE_ACCOUNT_KEY",
        () if is_set(AzureConfigKey::SasKey) => "the signature of AZURE_STORAGE_SAS_KEY",
        () if is_set(AzureConfigKey::ClientId) => "the credentials of AZURE_CLIENT_ID",
        () => "the credentials of this machine's identity",
    };
    if keys.anonymous {
        identity = "a request without credentials";
    } else {
        let store = builder.clone().with_http_connector(credentials).build();
        let store = store.map_err(|error| chain(&error))?;
        let noted: AzureCredentialProvider = Arc::new(Noted(Arc::clone(store.credentials())));
        builder = builder.with_credentials(noted);
    }
    let builder = builder.with_http_connector(data.clone());
    Ok((Provider::Az(Box::new(builder)), identity.to_owned()))
}

fn web(address: &Address, keys: &RemoteKeys) -> Chosen {
    let url = Url::parse(&address.base)
        .map_err(|error| format!("{} is not an address of a server: {error}", address.base))?;
    if let Some(why) = refusal(&url, keys.allow_http) {
        return Err(why);
    }
    if !keys.headers.is_empty() && url.scheme() == "http" {
        return Err("storage.headers are sent over https:// only; correct dataset.path".to_owned());
    }
    let identity = match keys.headers.is_empty() {
        true => "a request without credentials",
        false => "the credentials of storage.headers",
    };
    Ok((Provider::Web(url), identity.to_owned()))
}

/// Credentials whose failures are marked in the trace, to distinguish them from a data request's failures.
#[derive(Debug)]
struct Noted<C>(Arc<dyn CredentialProvider<Credential = C>>);

#[async_trait]
impl<C: std::fmt::Debug + Send + Sync> CredentialProvider for Noted<C> {
    type Credential = C;

    async fn get_credential(&self) -> object_store::Result<Arc<C>> {
        Trace::update(|trace| trace.is_credentials = true);
        let credential = self.0.get_credential().await;
        if credential.is_ok() {
            Trace::update(|trace| trace.is_credentials = false);
        }
        credential
    }
}
