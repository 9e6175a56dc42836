//! Calls the inner service in the scope of its request, if the layer provides one.
//!
//! Without the feature `macros` there are no scopes, and this only calls the service.

#[cfg(feature = "macros")]
pub(super) use with::{InnerFuture, RequestScope, call_inner, record_ruling};
#[cfg(not(feature = "macros"))]
pub(super) use without::{InnerFuture, RequestScope, call_inner, record_ruling};

#[cfg(feature = "macros")]
mod with {
    use std::pin::Pin;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    use http::Request;
    use http::request::Parts;
    use pin_project_lite::pin_project;
    use tollgate_core::Store;
    use tower_service::Service;

    use super::super::layer::Config;
    use super::super::scope::ScopedRequest;
    use crate::Ruling;
    use crate::function::AnyLimiter;
    use crate::scope::{Scope, ScopedFuture};

    /// The scope that a request is served in.
    pub(in super::super) type RequestScope = Option<Scope>;

    pin_project! {
        /// The inner service's future, in its scope or without one.
        #[project = Projected]
        pub(in super::super) enum InnerFuture<F> {
            InScope { #[pin] future: ScopedFuture<F> },
            Unscoped { #[pin] future: F },
        }
    }

    impl<F: Future> Future for InnerFuture<F> {
        type Output = F::Output;

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
            match self.project() {
                Projected::InScope { future } => future.poll(context),
                Projected::Unscoped { future } => future.poll(context),
            }
        }
    }

    #[inline(always)]
    pub(in super::super) fn call_inner<Svc: Service<Request<Q>>, Q>(
        inner: &mut Svc,
        request: Request<Q>,
        scope: RequestScope,
    ) -> InnerFuture<Svc::Future> {
        let Some(scope) = scope else {
            return InnerFuture::Unscoped { future: inner.call(request) };
        };
        let future = scope.clone().call(|| inner.call(request));
        InnerFuture::InScope { future: scope.run(future) }
    }

    pub(in super::super) fn record_ruling(limiter: u128, domain: &Arc<str>, ruling: &Ruling) {
        Scope::note(limiter, domain, ruling);
    }

    impl<S: Store + 'static> Config<S> {
        /// The scope of a request, if the layer provides one.
        pub(in super::super) fn scope(
            self: &Arc<Self>,
            copy: impl FnOnce() -> Parts,
        ) -> RequestScope {
            Some(self.scope_of(self.provides.as_ref()?, copy()))
        }

        /// The scope of a request in which functions find this limiter.
        pub(in super::super) fn scope_of(
            self: &Arc<Self>,
            limiter: &Arc<dyn AnyLimiter>,
            parts: Parts,
        ) -> Scope {
            let request = ScopedRequest::new(Arc::clone(self), parts);
            Scope::of_request(Arc::clone(limiter), &self.domain, Arc::new(request))
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

    #[inline(always)]
    pub(in super::super) fn call_inner<Svc: Service<Request<Q>>, Q>(
        inner: &mut Svc,
        request: Request<Q>,
        _: RequestScope,
    ) -> InnerFuture<Svc::Future> {
        inner.call(request)
    }

    pub(in super::super) const fn record_ruling(_: u128, _: &Arc<str>, _: &Ruling) {}

    impl<S: Store + 'static> Config<S> {
        pub(in super::super) fn scope(self: &Arc<Self>, _: impl FnOnce() -> Parts) -> RequestScope {
            RequestScope
        }
    }
}
