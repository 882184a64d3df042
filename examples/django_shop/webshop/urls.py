from django.urls import path

from webshop import views

urlpatterns = [
    path("orders", views.submit),
    path("orders/<order_id>/paid", views.paid),
    path("orders/<order_id>", views.result),
]
