"""Entities: classes whose methods are called under a key and keep durable state there."""
