//! Calls the inner service in the scope of its request, if the layer provides one.
//!
//! Without the feature `macros` there are no scopes, and this only calls the service.

#[cfg(feature = "macros")]
pub(super) use with::{InnerFuture, RequestScope, call_inner, record_ruling};
#[cfg(not(feature = "macros"))]
pub(super) use without::{InnerFuture, RequestScope, call_inner, record_ruling};

#[cfg(feature = "macros")]
mod with {
    use std::sync::Arc;

    use http::Request;
    use http::request::Parts;
    use tollgate_core::Store;
    use tower_service::Service;

    use super::super::layer::Config;
    use super::super::scope::ScopedRequest;
    use crate::Ruling;
    use crate::scope::{self, Scope, Scoped};

    /// The scope that a request is served in.
    pub(in super::super) type RequestScope = Option<Scope>;

    /// The inner service's future.
    pub(in super::super) type InnerFuture<F> = Scoped<F>;

    pub(in super::super) fn call_inner<Svc: Service<Request<Q>>, Q>(
        inner: &mut Svc,
        request: Request<Q>,
        scope: RequestScope,
    ) -> InnerFuture<Svc::Future> {
        let future = match &scope {
            Some(scope) => scope.clone().call(|| inner.call(request)),
            None => inner.call(request),
        };
        scope::run_in(scope, future)
    }

    pub(in super::super) fn record_ruling(limiter: u128, domain: &Arc<str>, ruling: &Arc<Ruling>) {
        Scope::note(limiter, domain, ruling);
    }

    impl<S: Store + 'static> Config<S> {
        /// The scope of a request, if the layer provides one.
        pub(in super::super) fn scope(
            self: &Arc<Self>,
            copy: impl FnOnce() -> Parts,
        ) -> RequestScope {
            let limiter = Arc::clone(self.provides.as_ref()?);
            let request = ScopedRequest::new(Arc::clone(self), copy());
            Some(Scope::of_request(limiter, &self.domain, Arc::new(request)))
        }
    }
}

#[cfg(not(feature = "macros"))]
mod without {
    use std::sync::Arc;

    use http::Request;
    use http::request::Parts;
    use tollgate_core::Store;
    use tower_service::Service;

    use super::super::layer::Config;
    use crate::Ruling;

    #[derive(Default)]
    pub(in super::super) struct RequestScope;

    pub(in super::super) type InnerFuture<F> = F;

    pub(in super::super) fn call_inner<Svc: Service<Request<Q>>, Q>(
        inner: &mut Svc,
        request: Request<Q>,
        _: RequestScope,
    ) -> InnerFuture<Svc::Future> {
        inner.call(request)
    }

    pub(in super::super) const fn record_ruling(_: u128, _: &Arc<str>, _: &Arc<Ruling>) {}

    impl<S: Store + 'static> Config<S> {
        pub(in super::super) fn scope(self: &Arc<Self>, _: impl FnOnce() -> Parts) -> RequestScope {
            RequestScope
        }
    }
}
